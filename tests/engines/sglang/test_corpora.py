"""Corpora that SGLang drafts from; see `CorporaSuite`.  SGLang's own routes for external corpora name specplug's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.corpus.store import Store
from specplug.text.fingerprint import fingerprint
from specplug_sglang.frontend.http import MESSAGE
from tests.engines.engines import Engine
from tests.engines.plain import greedy, prompts, tokenizer
from tests.engines.server import Server
from tests.engines.suites.corpora import MAX_TOKENS, POLL_SECONDS, CorporaSuite, answers, document, settings
from tests.engines.suites.operations import KEY, ask

OWN = [
    ("/add_external_corpus", {"corpus_id": "x", "documents": ["a text"]}),
    ("/remove_external_corpus", {"corpus_id": "x"}),
    ("/list_external_corpora", None),
]


def stated(root: Path) -> dict[str, Any]:
    return {**settings(root), "faults": {"host_deadline_ms": None}}


class TestCorpora(CorporaSuite):
    @pytest.fixture(scope="class")
    def started(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("SPECPLUG", name="library", settings=stated(root), api_key=KEY)

    @staticmethod
    def ids(server: Server, prompt: list[int], **stated: Any) -> list[int]:
        params = {"temperature": 0.0, "max_new_tokens": MAX_TOKENS, "custom_params": {"specplug": stated}}
        answer = ask(server, "/generate", {"input_ids": prompt, "sampling_params": params})
        assert answer.code == 200, answer.body
        return list(answer.json["output_ids"])

    @pytest.mark.parametrize(("path", "body"), OWN)
    def test_sglangs_own_routes_name_ours(self, server: Server, path: str, body: Any):
        answer = ask(server, path, body)
        assert (answer.code, answer.json["success"], answer.json["message"]) == (400, False, MESSAGE)


# -- without a server --------------------------------------------------------------------------------------------------


def tenants_of_each(engine: Any) -> list[dict[str, Any]]:
    """Return the corpora that each data-parallel engine has seen."""
    from specplug_sglang import status

    workers = [reported["workers"][0] for reported in status.read(engine)]
    return [next(iter(worker["details"].values()))["tenants"] for worker in workers]


def wait_until(served: Engine, expected: list[set[str]]) -> None:
    deadline = time.monotonic() + 60
    while list(map(set, served.call(tenants_of_each))) != expected:
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def drafted(served: Engine, which: int) -> int:
    """Answer a prompt rightly; return how many tokens of the answer were drafted."""
    number, _ = answers()[which]
    prompt = list(prompts()[number])
    (answer,) = served.call("inside.generate", prompts=[prompt], params={"custom_params": {"specplug_store": False}})
    assert answer["token_ids"] == greedy(tuple(prompt))["token_ids"]
    return int(answer["meta"]["spec_num_correct_drafts"])


@pytest.mark.slow
def test_several_engines_share_a_store(engine: Callable[..., Engine], tmp_path: Path):
    store = Store.create(tmp_path / "store", fingerprint(tokenizer()))
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
    own = {"settings": stated(store.root), "environment": environment}
    two = engine("SPECPLUG", dp_size=2, **own, name="retrieval, two engines")
    number, _ = answers()[0]
    store.add("answers", [document(greedy(prompts()[number])["token_ids"])])
    wait_until(two, [{""}, {""}])
    assert [drafted(two, 0) > 20 for _ in range(4)] == [True] * 4
