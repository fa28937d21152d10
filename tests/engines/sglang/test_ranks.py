"""Two ranks: of tensor parallelism, which verify the same drafts, and of data parallelism, engines of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside
from tests.engines.sglang.test_greedy import err, fields, reported

GIVEN = prompts()[:8]
LENGTH = 24
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "raises"],
    "policy": "fixed",
    "options": {"raises": {"rank": 0, "every": 3}},
    "faults": {"host_deadline_ms": None, "max_consecutive": 1000},
}
RANKS = {"settings": SETTINGS, "environment": {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}}


def ask(engine: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers, and what each engine counted on the rank that drafts."""
    from specplug_sglang.status import read

    answers = inside.generate(engine, prompts, params)
    return {"answers": answers, "counts": [status["workers"][0]["metrics"] for status in read(engine)]}


def answered(engine: Engine) -> list[dict[str, Any]]:
    """Let the engine answer with all kinds of draft; return what each engine counted."""
    truth = [greedy(prompt, LENGTH) for prompt in GIVEN]
    kinds: list[Callable[[list[int]], dict[str, Any]]] = [
        lambda answer: {},
        lambda answer: reported(err(answer)),
        lambda answer: fields(proposer="raises"),
        lambda answer: reported(answer),
    ]
    own = [kinds[index % len(kinds)](answer["token_ids"]) for index, answer in enumerate(truth)]
    params = [{"max_new_tokens": LENGTH, **one} for one in own]
    found = engine.call(ask, prompts=[list(prompt) for prompt in GIVEN], params=params)
    assert_greedy(GIVEN, truth, found["answers"])
    return found["counts"]


@pytest.mark.slow  # two processes that take turns
def test_tensor_parallel_ranks_verify_what_rank_0_drafts(engine: Callable[..., Engine]):
    """A proposer that raises on rank 0 costs its drafts on both, and nobody waits for the other."""
    (counts,) = answered(engine("SPECPLUG", tp_size=2, **RANKS, name="two tensor-parallel ranks"))
    assert counts["total"]["accepted"] > 60
    assert "raises" in counts["faults"]


@pytest.mark.slow  # two engines
def test_data_parallel_ranks_draft_for_themselves(engine: Callable[..., Engine]):
    counts = answered(engine("SPECPLUG", dp_size=2, **RANKS, name="two data-parallel ranks"))
    assert len(counts) == 2
    assert all(each["total"]["accepted"] > 20 for each in counts)
