"""SGLang's own draft models under specplug's plans: a draft model and an EAGLE head, with another length at each step.

The draft model is the target itself, so every draft is accepted unless the draft model's cache misses a token.  The
head's drafts are compared, context by context, with those of SGLang alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import eagle
from tests.engines.launch import TINY
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome

LENGTH = 4
ROWS = [prompts()[row] for row in (0, 3, 5, 8, 13, 18, 21, 23)]
CHANGING = {"proposer": "engine", "policy": "ladder", "options": {"ladder": {"draft_lengths": [4, 0, 2, 0, 1, 4, 1]}}}


@pytest.fixture(scope="session")
def drafted(engine: Callable[..., Engine]) -> Callable[..., Engine]:
    """Make an engine with a drafter of SGLang's own, and settings of specplug's or none."""

    def make(algorithm: str, draft: Path, settings: dict[str, Any] | None = None) -> Engine:
        return engine(
            algorithm,
            draft_length=LENGTH,
            speculative_num_steps=LENGTH,
            speculative_draft_model_path=str(draft),
            environment={"SPECPLUG_CONFIG": json.dumps(settings or {})},
            name=f"{algorithm} {'planned' if settings else 'alone'}",
        )

    return make


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eagle.save(tmp_path_factory.mktemp("models") / "eagle")


@pytest.fixture(scope="session")
def standalone(drafted: Callable[..., Engine]) -> Engine:
    return drafted("STANDALONE", TINY, CHANGING)


@pytest.fixture(scope="session")
def planned_eagle(drafted: Callable[..., Engine], head: Path) -> Engine:
    return drafted("EAGLE", head, CHANGING)


def answers(engine: Engine, params: Any = None, rows: list[tuple[int, ...]] = ROWS, **options: Any) -> list[Any]:
    found: list[Any] = engine.call(inside.generate, prompts=[list(row) for row in rows], params=params, **options)
    return found


# -- functions that run in the engine or its scheduler ----------------------------------------------------------------


def scheduler_status(engine: Any) -> dict[str, Any]:
    from specplug_sglang import status

    (found,) = status.read(engine)
    return dict(found)


def set_mode(engine: Any, **order: Any) -> Any:
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
    trees.restore(scheduler)
    return DRAFTS


def miss_steps_without_drafts(scheduler: Any) -> None:
    """The mistake: the draft model does not see the tokens of steps without drafts."""
    from sglang.srt.environ import envs

    envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(True)


def see_all_steps(scheduler: Any) -> None:
    from sglang.srt.environ import envs

    envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.clear()


# -- draft lengths that change at every step --------------------------------------------------------------------------


def counts(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.call(scheduler_status)["scheduler"]["metrics"]["by_source"]
    return found


def change(after: dict[str, Any], before: dict[str, Any], name: str) -> Any:
    if isinstance(after[name], list):
        return [new - old for new, old in zip(after[name], before[name], strict=True)]
    return after[name] - before[name]


@pytest.mark.parametrize("algorithm", ["standalone", "planned_eagle"])
def test_greedy_text_is_the_targets(algorithm, request):
    engine = request.getfixturevalue(algorithm)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))


def drafts_by_context(engine: Engine) -> dict[tuple[str, int], list[int]]:
    """Run all requests; return the draft that was verified after each text, by request and the text's length."""
    engine.inside(record_drafts)
    answers(engine, rid=[str(row) for row in range(len(ROWS))])
    return {(rid, length): draft for rid, length, draft in engine.inside(recorded_drafts)}


def in_both(expected: dict[Any, list[int]], actual: dict[Any, list[int]]) -> list[tuple[list[int], list[int]]]:
    """Return what was drafted after the same texts, with changing and with constant lengths."""
    assert {len(draft) for draft in expected.values()} == {LENGTH}
    assert {len(draft) for draft in actual.values()} == {0, 1, 2, LENGTH}
    found = [(actual[context], expected[context]) for context in actual.keys() & expected.keys() if actual[context]]
    assert len(found) > 30
    return found


@pytest.fixture(scope="session", params=["STANDALONE", "EAGLE"])
def constant(request: pytest.FixtureRequest, drafted: Callable[..., Engine], head: Path) -> Any:
    """What SGLang drafts without specplug, by context, and the engine whose lengths change."""
    draft, planned = {"STANDALONE": (TINY, "standalone"), "EAGLE": (head, "planned_eagle")}[request.param]
    return drafts_by_context(drafted(request.param, draft)), request.getfixturevalue(planned)


def test_drafts_are_as_if_lengths_never_changed(constant):
    expected, engine = constant
    assert all(draft == whole[: len(draft)] for draft, whole in in_both(expected, drafts_by_context(engine)))


def test_a_draft_model_that_misses_steps_without_drafts_is_noticed(constant):
    expected, engine = constant
    engine.inside(miss_steps_without_drafts)
    try:
        found = in_both(expected, drafts_by_context(engine))
    finally:
        engine.inside(see_all_steps)
    assert sum(draft != whole[: len(draft)] for draft, whole in found) > len(found) // 4
