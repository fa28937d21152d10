"""The simulation's tiers decide as SGLang's own class does with its default settings."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from benchmarks.simulate.peers import INITIAL, TiersPlanner
from specplug.interfaces import PluginContext
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, RequestStats, StepReport
from tests.engines.engines import Engine

REQUESTS = tuple(RequestStats(str(row), 1, 1) for row in range(128))
MOST = 7


def theirs(engine: Any, batches: list[tuple[int, list[int]]], initial: int) -> list[int]:
    """Return SGLang's draft lengths for batches of so many rows, whose rows accept so many tokens if they may."""
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    params, found = AdaptiveSpeculativeParams(initial), []
    for rows, accepted in batches:
        found.append(params.get_steps_for_batch(rows))
        params.on_verify_complete([min(count, found[-1]) for count in accepted], rows)
    return found


def ours(batches: list[tuple[int, list[int]]]) -> list[int]:
    planner, found = TiersPlanner(PluginContext(EngineCaps(MOST))), []
    for step, (rows, accepted) in enumerate(batches):
        length = planner.plan(HostStats(step, REQUESTS[:rows])).draft_length
        found.append(length)
        fates = [(length, min(count, length)) for count in accepted]
        planner.observe(StepReport.build(step, length, rows, fates))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_draft_lengths_equal_sglangs(baseline: Engine, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 5, 8, 20, 32, 50, 64, 100)) for _ in range(8)]
    batches = []
    for rate, (rows, _) in itertools.product([0.05, 0.4, 0.95], itertools.product(sizes, range(25))):
        batches.append((rows, [sum(chance.random() < rate for _ in range(MOST)) for _ in range(rows)]))
    expected = baseline.call(theirs, batches=batches, initial=INITIAL)
    assert ours(batches) == expected
    assert len({*expected}) > 2
