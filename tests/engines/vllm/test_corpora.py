"""Corpora that vLLM drafts from; see `CorporaSuite`.  V2 is in these tests' hands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.corpus.store import Store
from specplug.text.fingerprint import fingerprint
from tests.corpus.tools import OTHER
from tests.engines.engines import Engine, Raised
from tests.engines.launch import TINY
from tests.engines.plain import prompts, tokenizer
from tests.engines.server import MODEL, Server
from tests.engines.suites.corpora import (
    MAX_TOKENS,
    POLL_SECONDS,
    SOURCE,
    CorporaSuite,
    answers,
    document,
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


# -- V2, in this process's hands ---------------------------------------------------------------------------------------


def tenants_seen(llm: Any) -> dict[str, Any]:
    from tests.engines.vllm.watching import drafting

    return drafting(llm).stage.proposers["retrieval"].status()["tenants"]


@pytest.mark.slow  # V1 drafts from them, and proposers are the same on V2
def test_v2_drafts_from_corpora_that_others_change(engine: Callable[..., Engine], tmp_path: Path):
    store = Store.create(tmp_path / "store", fingerprint(tokenizer()))
    store.add("answers", [document(answers()[1][1])], tenant="b")
    served = engine("v2", settings(store.root), name="library v2")
    number, ids = answers()[0]

    def run(tenant: str) -> dict[str, Any]:
        params = {"max_tokens": MAX_TOKENS, "extra_args": {"specplug": {"store": False, "tenant": tenant}}}
        found = served.call("watching.counted", prompts=[list(prompts()[number])], params=params)
        assert tuple(found["result"][0]["token_ids"]) == ids
        assert found["faults"] == {}
        return found

    def seen(tenants: set[str]) -> None:
        deadline = time.monotonic() + 60
        while set(served.call(tenants_seen)) != tenants:
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)

    plain = run("a")
    assert plain["by_source"][SOURCE]["accepted"] == 0
    store.add("answers", [document(ids)], tenant="a")
    seen({"a", "b"})
    helped = run("a")
    assert helped["by_source"][SOURCE]["accepted"] > 0
    assert helped["total"]["tau"] > 1.2 * plain["total"]["tau"]
    assert run("b")["by_source"][SOURCE]["accepted"] == 0
    store.remove("answers", tenant="a")
    seen({"b"})
    assert run("a")["by_source"][SOURCE]["accepted"] == 0


def test_a_store_of_another_tokenizer_stops_the_start(engine: Callable[..., Engine], tmp_path: Path):
    store = Store.create(tmp_path / "store", OTHER)
    with pytest.raises(Raised) as caught:
        engine("v2", settings(store.root), name="foreign library").call("inside.facts")
    assert "the corpus store is of another tokenizer" in str(caught.value)
    assert OTHER.name in str(caught.value)
    assert str(TINY) in str(caught.value)
