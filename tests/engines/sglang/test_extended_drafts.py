"""Lookup behind SGLang's own draft models, a draft model and EAGLE heads, with another draft length at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.engines.plain import assert_greedy, greedy
from tests.engines.sglang import trees
from tests.engines.sglang.drafters import ROWS, answers, drafted, drafts_by_text, status
from tests.engines.sglang.engines import Engine

ALGORITHMS = ["EAGLE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("STANDALONE", "EAGLE3"))]
MODEL_TOKENS, LENGTH = 2, 8
EXTENDED = {
    "proposer": "hybrid",
    "policy": "ladder",
    "options": {
        "hybrid": {"model": "engine", "model_tokens": MODEL_TOKENS},
        "ladder": {"draft_lengths": [8, 8, 0, 4, 1, 8, 2]},
        "ngram": {"min_n": 1},
    },
}
"""Settings under which lookup may go on behind the two tokens of the drafter, and most steps have another length."""


@pytest.fixture
def make(engine: Callable[..., Engine], draft_of: Callable[[str], Path]) -> Callable[..., Engine]:
    """Make an engine: ``make("EAGLE", EXTENDED)``."""

    def made(algorithm: str, settings: dict[str, Any] | None = EXTENDED, **others: Any) -> Engine:
        own = {"draft_length": LENGTH, "speculative_num_steps": None} if settings else {}
        return drafted(engine, algorithm, draft_of(algorithm), settings, **own, **others)

    return made


def counts(engine: Engine) -> dict[str, Any]:
    """Return the counts of drafts by source."""
    (worker,) = engine.call(status)["workers"]
    found: dict[str, Any] = worker["metrics"]["by_source"]
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_greedy_text_is_the_targets(algorithm, make):
    engine = make(algorithm)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))
    found = counts(engine)
    engine_at, lookup_at = (found[name]["verified_at"] for name in ("engine", "ngram"))
    assert min(engine_at[:MODEL_TOKENS]) > 0
    assert sum(engine_at[MODEL_TOKENS:]) == 0
    assert min(lookup_at) > 0
    assert min(found[name]["accepted"] for name in ("engine", "ngram")) > 0


# -- the drafter's key-value cache ------------------------------------------------------------------------------------

DRAFTED: list[list[Any]] = []


def plant_tails(scheduler: Any, texts: list[list[int]]) -> None:
    """Verify drafts of random lengths of which random numbers are right; record what SGLang's drafter drafted.

    `texts` are the prompts with the target's continuations, by request.
    """
    worker, random = scheduler.draft_worker, Random(5)
    go_on = worker.go_on

    def planted(engine_ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, _ = go_on(engine_ids, length)
        step, lengths = worker._decoding, []
        worker._draft = None  # lookup has seen no drafts
        for row, (req, before) in enumerate(zip(step.reqs, step.before.tolist(), strict=True)):
            DRAFTED.append([req.rid, before, engine_ids[row].tolist()])
            following = texts[int(req.rid)][before + 1 :]
            right = min(random.randint(0, length), len(following))
            lengths.append(random.randint(right, length))
            ids[row, :right] = torch.tensor(following[:right], dtype=torch.int64)
            ids[row, right:] = 7
        return ids, torch.tensor(lengths)

    DRAFTED.clear()
    trees.put(worker, "go_on", planted)


def drafted_by_engine(scheduler: Any) -> list[list[Any]]:
    return DRAFTED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_drafter_drafts_as_if_there_were_no_tails(algorithm, make):
    """Whatever was verified and accepted behind its tokens: its cache has all of it."""
    engine, texts = make(algorithm), [[*row, *greedy(row)] for row in ROWS]
    with engine.planted(plant_tails, texts=texts):
        found = answers(engine, rid=[str(row) for row in range(len(ROWS))])
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    if algorithm == "STANDALONE":  # the target itself
        expected = {(str(row), n): text[n + 1 :] for row, text in enumerate(texts) for n in range(len(text) - 9)}
    else:
        expected = drafts_by_text(make(algorithm, None))
    actual = {(rid, length): ids for rid, length, ids in engine.inside(drafted_by_engine)}
    assert {len(ids) for ids in actual.values()} == {1, MODEL_TOKENS}
    common = actual.keys() & expected.keys()
    assert len(common) > 20
    assert all(actual[text] == expected[text][: len(actual[text])] for text in common)
