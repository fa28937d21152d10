"""Engines with SGLang's own drafters for the tests of their plans, and what these tests ask of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specplug.testing.equality import judge_greedy
from tests.engines.continuations import continuations
from tests.engines.plain import forward, model, prompts
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine

LENGTH = 4
ROWS = [prompts()[row] for row in (0, 3, 5, 8, 13, 18, 21, 23)]
CHANGING = {"proposer": "engine", "policy": "ladder", "options": {"ladder": {"draft_lengths": [4, 0, 2, 0, 1, 4, 1]}}}
"""Settings under which each step has another draft length than the one before."""
MODEL_TOKENS = 2
EXTENDED = {
    "proposer": "hybrid",
    "policy": "ladder",
    "options": {
        "hybrid": {"model": "engine", "model_tokens": MODEL_TOKENS},
        "ladder": {"draft_lengths": [8, 8, 0, 4, 1, 8, 2]},
        "ngram": {"min_n": 1, "memory_tokens": 0},
    },
}
"""Settings under which lookup may continue the two tokens of the drafter, and most steps have another length."""


def arguments(draft: Path, settings: dict[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of an engine with a draft model, and settings of specplug's or none."""
    lengths = {"draft_length": LENGTH, "speculative_num_steps": LENGTH}
    if (settings or {}).get("proposer") == "hybrid":
        lengths = {"draft_length": 2 * LENGTH, "speculative_num_steps": None}
    return {
        **lengths,
        "speculative_draft_model_path": str(draft),
        "settings": settings or {},
    }


def drafted(
    engine: Callable[..., Engine], algorithm: str, draft: Path, settings: dict[str, Any] | None = None, **others: Any
) -> Engine:
    """Make an engine, with the fixture of that name."""
    name = f"{algorithm} {(settings or {}).get('proposer', 'alone')}"
    return engine(algorithm, **{**arguments(draft, settings), "name": name, **others})


def answers(engine: Engine, params: Any = None, rows: Sequence[Sequence[int]] = ROWS, **options: Any) -> list[Any]:
    """Generate for all rows at once; see `inside.generate`."""
    found: list[Any] = engine.call(inside.generate, prompts=[list(row) for row in rows], params=params, **options)
    return found


def counts(engine: Engine) -> dict[str, Any]:
    """Return the counts of drafts by source."""
    found: dict[str, Any] = engine.call(status)["scheduler"]["metrics"]["by_source"]
    return found


def extended_counts(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the counts of the drafter's tokens, under "engine", and of all that lookup drafted, under "lookup"."""
    (worker,) = engine.call(status)["workers"]
    sources = worker["metrics"]["by_source"]
    own = [found for name, found in sources.items() if name.startswith("ngram") and name != "ngram/engine"]
    lookup = {name: sum(found[name] for found in own) for name in ("accepted", "verified")}
    for name in ("verified_at", "accepted_at"):
        lookup[name] = [sum(column) for column in zip(*(found[name] for found in own), strict=True)]
    return {"engine": sources["ngram/engine"], "lookup": lookup}


def status(engine: Any) -> dict[str, Any]:
    """Return specplug's status, in the engine's process."""
    from specplug_sglang import status

    (found,) = status.read(engine)
    return dict(found)


def set_mode(engine: Any, **order: Any) -> Any:
    """Give an operator's order, in the engine's process."""
    from specplug_sglang import status

    return status.set_mode(engine, **order)


DRAFTS: list[list[Any]] = []


def record_drafts(scheduler: Any) -> None:
    """Record, of each row that is verified, its request, the length of its text, and its draft."""
    worker = scheduler.draft_worker
    verify = worker.verify

    def recorded(batch: Any, *args: Any, **kwargs: Any) -> Any:
        rows = batch.spec_info.draft_token.view(len(batch.reqs), -1).tolist()
        for req, length, draft in zip(batch.reqs, batch.seq_lens.tolist(), rows, strict=True):
            DRAFTS.append([req.rid, length, draft[1:]])
        return verify(batch, *args, **kwargs)

    DRAFTS.clear()
    trees.put(worker, "verify", recorded)


def recorded_drafts(scheduler: Any) -> list[list[Any]]:
    return DRAFTS


def drafts_by_text(engine: Engine) -> dict[tuple[str, int], list[int]]:
    """Run all requests; return the draft that was verified after each text, by request and the text's length."""
    with engine.planted(record_drafts):
        answers(engine, rid=[str(row) for row in range(len(ROWS))])
    return {(rid, length): draft for rid, length, draft in engine.inside(recorded_drafts)}


def judge_long_answers(engine: Engine) -> list[Any]:
    """Assert that answers of 120 tokens are the target's, and return them."""
    given, expected = long_answers()
    found = answers(engine, {"max_new_tokens": 120, "ignore_eos": True}, given)
    judge_greedy(forward, given, expected, [answer["token_ids"] for answer in found]).assert_ok()
    return found


@functools.cache
def long_answers() -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts, and how the plain model goes on."""
    given = [list(prompts()[row]) for row in (3, 8, 13, 18, 21, 23)]
    return given, continuations(model(), given, 120)
