"""A third party's proposer drafts in SGLang as it does elsewhere; see `tests.engines.same_drafts`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.trace import TraceRow
from tests.engines import same_drafts
from tests.engines.sglang import inside
from tests.engines.sglang.engines import Engine
from tests.trace_reader import read_trace


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same") / "trace.jsonl"


@pytest.fixture
def parrot(path: Path, engine: Callable[..., Engine]) -> Engine:
    """An overlapped engine with the third party's proposer, and a trace."""
    settings = {**same_drafts.SETTINGS, "trace": {"path": str(path)}}
    return engine(
        "SPECPLUG",
        draft_length=same_drafts.DRAFT_LENGTH,
        environment={"SPECPLUG_CONFIG": json.dumps(settings)},
        name="parrot",
    )


def plant(scheduler: Any, mutant: str | None) -> None:
    """Put a mistake into the proposer, or take it out."""
    same_drafts.plant(scheduler.draft_worker.drafting.stage, mutant)


def faults(scheduler: Any) -> dict[str, Any]:
    """Write out the trace; return what went wrong."""
    stage = scheduler.draft_worker.drafting.stage
    stage._trace.flush()
    return stage.metrics.snapshot().as_dict()["faults"]


def trace(parrot: Engine, path: Path, count: int | None = None, mutant: str | None = None) -> list[TraceRow]:
    """Serve prompts; return what they add to the trace."""
    given = same_drafts.requested(count)
    assert parrot.call(inside.flush)
    before = len(read_trace(path))
    parrot.inside(plant, mutant=mutant)
    answers = parrot.call(
        inside.generate,
        prompts=list(given.values()),
        params={"max_new_tokens": same_drafts.MAX_TOKENS},
        rid=list(given),
    )
    assert parrot.inside(faults) == {}
    parrot.inside(plant, mutant=None)
    same_drafts.assert_answers({name: own["token_ids"] for name, own in zip(given, answers, strict=True)})
    return read_trace(path)[before:]


def test_drafts_are_the_same(parrot, path):
    assert parrot.inside(inside.facts)["overlap"]
    same_drafts.assert_drafts(trace(parrot, path))


@pytest.mark.parametrize("mutant", same_drafts.MUTANTS)
def test_drafts_of_a_mutant_are_not(mutant, parrot, path):
    with pytest.raises(AssertionError):
        same_drafts.assert_drafts(trace(parrot, path, 4, mutant), 4)
    same_drafts.assert_drafts(trace(parrot, path, 4), 4)
