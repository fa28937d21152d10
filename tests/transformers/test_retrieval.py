"""The embedded engine drafts from a corpus store, of which tenants see their own part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.text.fingerprint import fingerprint
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.transformers.conftest import greedy
from tests.transformers.test_stopping import byte_tokenizer

PROMPT = [5, 9, 33]
MAX_TOKENS = 48
SOURCE = "retrieval/corpus"

Make = Callable[..., Engine]


@pytest.fixture
def answer(llama: Any) -> list[int]:
    return greedy(llama, PROMPT, MAX_TOKENS, eos_token_id=None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", fingerprint(byte_tokenizer()))


@pytest.fixture
def make(make_engine: Make, store: Store) -> Callable[[], Engine]:
    def made() -> Engine:
        corpora = {"store": str(store.root), "poll_seconds": 0.01}
        return make_engine(tokenizer=byte_tokenizer(), proposer="retrieval", policy="fixed", corpora=corpora)

    return made


def document(ids: list[int], name: str = "answer") -> Document:
    return Document(name, np.array(ids, np.int32))


def counted(engine: Engine, **stated: Any) -> tuple[list[int], int, dict[str, int]]:
    """Ask the prompt; return the answer, its steps, and the accepted tokens by source.  No response is stored."""
    before = engine.metrics.snapshot()
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    [output] = engine.generate([GenerateRequest(prompt=PROMPT, params=params, specplug={"store": False, **stated})])
    counts = (engine.metrics.snapshot() - before).as_dict()
    assert counts["faults"] == {}
    found = {name.removeprefix("retrieval/"): count["accepted"] for name, count in counts["by_source"].items()}
    return list(output.token_ids), output.steps, found


def test_a_tenants_corpora_are_drafted_from_by_its_own_requests_only(make, store, answer):
    store.add("answers", [document(answer)], tenant="a")
    store.add("answers", [document(list(range(40, 90)))], tenant="b")
    engine = make()
    plain, plain_steps, _ = counted(engine)
    helped, steps, found = counted(engine, tenant="a")
    assert plain == helped == answer
    assert found["corpus"] > 0
    assert steps < plain_steps
    for stated in ({}, {"tenant": "b"}, {"tenant": "b", "corpora": "answers", "documents": "answer"}):
        text, _, found = counted(engine, **stated)
        assert (text, found["corpus"]) == (answer, 0)


def test_documents_and_corpora_are_named_by_requests(make, store, answer):
    """Tokens of a named document are no longer attributed to corpora."""
    store.add("mixed", [document(answer, "mine.txt"), document([7, 8, 9], "other.txt")])
    store.add("aside", [document([50, 51, 52])])
    engine = make()
    for stated in ("mine.txt", {"name": "mine.txt", "corpus": "mixed"}, ["other.txt", "mine.txt"]):
        text, _, found = counted(engine, documents=stated)
        assert (text, found["corpus"]) == (answer, 0)
        assert found["own text"] + found["reference"] > 24
    for stated in (
        {"corpora": ["mixed"]},
        {"documents": ["none", {"name": "mine.txt", "corpus": "aside"}], "corpora": "x"},
    ):
        text, _, found = counted(engine, **stated)
        assert text == answer
        assert found["corpus"] > 24
    assert engine._drafts.proposers["retrieval"].status()["unknown_documents"] == 2
