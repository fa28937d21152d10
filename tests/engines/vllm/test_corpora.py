"""Corpora that vLLM drafts from; see `CorporaSuite`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.corpus.store import Store
from tests.corpus.tools import OTHER
from tests.engines.engines import Engine, Raised
from tests.engines.launch import TINY
from tests.engines.server import MODEL, Server
from tests.engines.suites.corpora import (
    MAX_TOKENS,
    CorporaSuite,
    settings,
)
from tests.engines.suites.operations import KEY, ask


class TestCorpora(CorporaSuite):
    @pytest.fixture(scope="class")
    def started(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("v1", settings(root), name="library", endpoints=True, api_key=KEY, in_process=True)

    @staticmethod
    def ids(server: Server, prompt: list[int], **stated: Any) -> list[int]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        body |= {"return_token_ids": True, "vllm_xargs": {"specplug": json.dumps(stated)}}
        answer = ask(server, "/v1/completions", body)
        assert answer.code == 200, answer.body
        return list(answer.json["choices"][0]["token_ids"])


def test_a_store_of_another_tokenizer_stops_the_start(engine: Callable[..., Engine], tmp_path: Path):
    store = Store.create(tmp_path / "store", OTHER)
    with pytest.raises(Raised) as caught:
        engine("v2", settings(store.root), name="foreign library").call("inside.facts")
    assert "the corpus store is of another tokenizer" in str(caught.value)
    assert OTHER.name in str(caught.value)
    assert str(TINY) in str(caught.value)
