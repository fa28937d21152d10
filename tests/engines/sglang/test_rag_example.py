"""The retrieval examples run as they stand, against a real SGLang."""

from __future__ import annotations

import pytest

from tests.engines import rag
from tests.engines.sglang.test_examples import run


@pytest.fixture
def server(serve):
    return serve("SPECPLUG", anew=True, name="examples")


@pytest.mark.slow
def test_the_client_quotes_what_it_found(server, tmp_path):
    rag.client_answers(
        lambda *requested, **values: run(*requested, **values)[0], server.url, server.model, "sglang", tmp_path
    )


@pytest.mark.slow  # vLLM's tests run it, too
def test_records_come_in_fewer_steps_with_references(server):
    rag.references_gain(server, "sglang")


@pytest.mark.slow  # three servers
def test_the_demo_shows_what_retrieved_texts_gain():
    rag.demo_compares(run("rag_demo.py", "--tasks", "2", "--json", values={"vllm": "sglang"})[0], "sglang", 2)
