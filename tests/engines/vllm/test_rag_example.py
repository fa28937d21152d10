"""The retrieval examples run as they stand, against a real vLLM."""

from __future__ import annotations

import pytest

from tests.engines import rag
from tests.engines.vllm.test_examples import run


def test_the_client_quotes_what_it_found(v1_server, tmp_path):
    rag.client_answers(run, v1_server.url, v1_server.model, "vllm", tmp_path)


def test_records_come_in_fewer_steps_with_references(v1_server):
    rag.references_gain(v1_server, "vllm")


@pytest.mark.slow  # three servers
def test_the_demo_shows_what_retrieved_texts_gain():
    rag.demo_compares(run("rag_demo.py", "--tasks", "2", "--json"), "vllm", 2)
