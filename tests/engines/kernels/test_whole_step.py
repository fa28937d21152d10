"""Whole steps of the lookup in three kernels: equal to the draft stage and compiled code, in any order of programs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from types import ModuleType
from typing import Any

import pytest

from specplug.launching import Launcher
from specplug.lookup import steps
from specplug.lookup.steps import LookupSteps
from specplug.settings.model import Faults
from specplug.steps import trim as survival
from specplug.steps.device_step import DraftOutputs
from specplug.steps.device_steps import Launches, launches_for
from specplug.types.step import StepPlan
from tests.engines.interpreted import device_kernels, lookup_kernels
from tests.steps.oracle import CPU, Engine, Row, compare, lookup_stage


class Kernels:
    """The kernels of the lookup and of what is around it, interpreted, and the kernels that they have launched."""

    def __init__(self, lookup: ModuleType, launches: Launches) -> None:
        self.lookup, self.launches = lookup, launches
        self.launched: list[str] = []

    def engine(self, *, of: type[Engine] = Engine, **options: Any) -> Engine:
        """Return an engine whose steps are these kernels', of a `lookup_stage`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "form_for", lambda device: self.lookup)
            return of(lookup_stage(**options), launches=self.launches)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(survival, "_has_triton", lambda: False)
        stack.enter_context(device_kernels(interpreted=True))
        lookup = stack.enter_context(lookup_kernels())
        launches = launches_for(CPU)
        assert launches is not None
        made = Kernels(lookup, launches)
        call = Launcher.__call__

        def noting(self: Launcher, grid: Any, *arguments: Any, **named: Any) -> None:
            is_fused = any(named.get(it) is not None for it in ("BEGIN", "FINISH"))
            made.launched.append(f"{self._kernel.fn.__name__} and more" if is_fused else self._kernel.fn.__name__)
            call(self, grid, *arguments, **named)

        patch.setattr(Launcher, "__call__", noting)
        yield made


SLOW = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize(("engine_tokens", "reports"), [(0, True), (2, False)])
def test_three_kernels_take_the_steps_of_the_stage(
    kernels: Kernels, seed: int, engine_tokens: int, reports: bool
) -> None:
    engines = [Engine(lookup_stage(engine_tokens=engine_tokens)), kernels.engine(engine_tokens=engine_tokens)]
    for engine in engines:
        engine.reports_expected = reports
    kernels.launched.clear()
    taken, wrong = compare(Random(seed), engines, steps=12)
    assert wrong == []
    assert taken > 3
    launched = Counter(kernels.launched)
    assert launched["ingest_kernel and more"] > launched["ingest_kernel"] == 0
    assert launched["draft_kernel and more"] > 0
    assert (launched["append_kernel"] > 0) == (engine_tokens > 0)


class Planned(Engine):
    """An engine whose plans cut nothing, since ties go to the lower row."""

    def step(self, rows: list[Row], plan: StepPlan) -> DraftOutputs:
        return super().step(rows, replace(plan, token_budget=None, costs=()))


class Opposite(Planned):
    """An engine whose batches have their rows in the opposite order, so that programs run in another one."""

    def step(self, rows: list[Row], plan: StepPlan) -> DraftOutputs:
        outputs = super().step(rows[::-1], plan)
        return outputs._replace(**{name: it.flip(0) for name, it in outputs._asdict().items() if it is not None})


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize("engine_tokens", [0, pytest.param(2, marks=SLOW)])
def test_ranks_draft_the_same_whatever_the_order_of_programs(kernels: Kernels, seed: int, engine_tokens: int) -> None:
    """Drafts, texts, hash tables, counts and reports are equal bit by bit."""
    engines = [kernels.engine(engine_tokens=engine_tokens, of=it) for it in (Planned, Opposite)]
    for engine in engines:
        engine.reports_expected = True
    taken, wrong = compare(Random(seed), engines, steps=10)
    assert wrong == []
    assert taken > 3


FAULTS = ("ingest", "", "end", "", "scan", "", "draft", "", "end", "end", "", "", "")
"""Before which launch a step of a `Faulty` lookup raises, or at its end; after the two in a row the proposer is off."""


class Faulty:
    """The steps of a lookup, which raise as `FAULTS` say."""

    def __init__(self, lookup: LookupSteps) -> None:
        self._form, self._run, self._fault = lookup._form, lookup.run, ""
        self._faults = itertools.cycle(FAULTS)
        lookup._form = self  # type: ignore[assignment]
        lookup.run = self.run  # type: ignore[method-assign]

    def run(self, *arguments: Any, **named: Any) -> None:
        self._fault = next(self._faults)
        self._run(*arguments, **named)
        self._raise_at("end")

    def __getattr__(self, name: str) -> Any:
        self._raise_at(name)
        return getattr(self._form, name)

    def _raise_at(self, place: str) -> None:
        if self._fault == place:
            raise ZeroDivisionError("planted")


@pytest.mark.parametrize("reports", [True, pytest.param(False, marks=SLOW)])
def test_a_fault_between_launches_counts_nothing_twice_or_never(kernels: Kernels, reports: bool) -> None:
    faults = Faults(max_consecutive=2, cooldown_steps=1)
    engines = [Engine(lookup_stage(faults=faults)), kernels.engine(faults=faults)]
    for engine in engines:
        Faulty(engine.proposer.steps)  # type: ignore[attr-defined]
        engine.reports_expected = reports
    _, wrong = compare(Random(4), engines, steps=40)
    assert wrong == []
    found = [engine.stage.metrics.snapshot().faults["ngram"] for engine in engines]
    assert found[0] == found[1]
    assert found[0]["switched off"] > 0
    assert found[0]["raised"] >= 6
