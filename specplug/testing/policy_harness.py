"""Harness of the policy contract: the policy under test, and the figures and drafts that it is fed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor

from specplug.interfaces import Planner, PluginContext, Trimmer
from specplug.plugins.specs import PolicySpec
from specplug.steps.plan_stage import checked_costs
from specplug.testing.batches import make_batch
from specplug.testing.driver import NO_OPTIONS, context_for
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.draft import chain_parents
from specplug.types.paths import ROOT
from specplug.types.plan import HostStats, RequestStats, StepReport, TrimLimits
from specplug.types.step import CostPoint, Draft, EngineBatch, Outcome, StepCost, StepPlan, Verdict
from specplug.types.tensors import map_tensors

PRICES = (0.0, 0.05, 0.2, 0.5, 0.8, 1.0)
"""Costs of each draft token."""

JUMPS = (0.0, 0.4, 2.0, 9.0)
"""Costs of any draft tokens, beyond their own."""

ENGINES: Mapping[str, EngineCaps] = MappingProxyType(
    {
        "an engine of ragged rows": EngineCaps(8),
        "an engine that pads rows": EngineCaps(8, ragged=Ragged.PADDED),
        "an engine with captured draft lengths": EngineCaps(
            7, captured_draft_lengths=(0, 1, 3, 7), ragged=Ragged.PADDED, draft_length_change=DraftLengthChange.CAPTURED
        ),
        "an engine that verifies its budget": EngineCaps(8, verifies_budget=True),
        "an engine without drafts": EngineCaps(0),
    }
)

PROFILE = (
    *(StepCost(size, size, 1024 * size, 0, 0.004 + size * 1e-5) for size in (1, 8, 64, 64, 256)),
    StepCost(256, 512, 1 << 18, 1, 0.009),
    StepCost(256, 4096, 1 << 18, 8, 0.045, prompt_tokens=1792),
)
"""Costs as an engine profiles them: a size twice, and one whose rows are longer than drafts."""

_LEVELS = ((0.97, 0.93, 0.88, 0.71), (0.61,), (0.83, 0.42, 0.91, 0.38), (), (0.99, 0.53, 0.36, 0.94))
_PARENTS = ((ROOT, 0, 0, 2), (ROOT,), (ROOT, ROOT, 1, 0), (), (ROOT, 0, 1, 2))


class PolicyHarness:
    """Builds and feeds the halves of a policy.

    Override `spec`, and where they do not fit `options`, as arguments of its options model, and the `engines` that it
    plans for, by their name in messages; it trims for the first.
    """

    spec: PolicySpec
    options: Mapping[str, object] = NO_OPTIONS
    engines: Mapping[str, EngineCaps] = ENGINES

    budgets: Sequence[int] = (0, 1, 4, 7, 99)

    @property
    def who(self) -> str:
        """Return the policy's name for messages."""
        return f"policy {self.spec.name!r}"

    # -- the plan half -------------------------------------------------------------------------------------------

    def planner(self, caps: EngineCaps, rank: int = 0) -> Planner:
        """Return a new plan half."""
        planner: Planner = self.spec.build(self._context(caps, rank))
        return planner

    def plan(self, engine: str, planner: Planner, stats: HostStats) -> StepPlan:
        """Return a plan, all of which is within the limits of an engine, which is named as in `engines`."""
        plan = planner.plan(stats)
        where = f"for {len(stats.requests)} requests on {engine}"
        assert isinstance(plan, StepPlan), f"{self.who}: planned {plan!r} {where}; expected a StepPlan"
        longest = self.engines[engine].max_draft_length
        stated = planner.longest_draft(len(stats.requests))
        longest = longest if stated is None else min(longest, stated)
        in_range = isinstance(plan.draft_length, int) and 0 <= plan.draft_length <= longest
        found = f"draft length {plan.draft_length!r} {where}; expected an int in [0, {longest}]"
        assert in_range, f"{self.who}: {found}"
        budget = plan.token_budget
        is_budget = budget is None or (isinstance(budget, int) and budget >= 0)
        assert is_budget, f"{self.who}: token_budget {budget!r} {where}; expected None or an int >= 0"
        low = {name: cap for name, cap in plan.caps.items() if cap < 0}
        assert not low, f"{self.who}: caps {low} {where}; expected caps >= 0"
        assert plan.num_steps >= 1, f"{self.who}: num_steps {plan.num_steps} {where}; expected at least 1"
        checked_costs(plan.costs)
        return plan

    def plans(self, engine: str, rank: int = 0, profile: Sequence[StepCost] | None = None) -> list[StepPlan]:
        """Return the plans of steps of 0 to 512 requests; each step is reported with half of its drafts accepted.

        `profile` holds costs that the engine profiled before, None if it profiles none.
        """
        planner = self.planner(self.engines[engine], rank)
        plans = []
        if profile is not None:
            planner.calibrate(profile)
        cost = None
        for step, count in enumerate((0, 1, 2, 4, 1, 32, 200, 512, 8, 7, 0, 3)):
            plan = self.plan(engine, planner, replace(stats_of(count, step), last_step=cost))
            plans.append(plan)
            length = plan.draft_length
            tokens = count * (length + 1)
            if count:
                cost = StepCost(count, tokens, 100 * count, length, seconds=0.01 + tokens * 1e-5)
            if planner.learns:
                counts = [(length, number % (length + 1)) for number in range(count)]
                planner.observe(StepReport.build(step, length, count, counts, cost=cost))
        return plans

    # -- the trim half -------------------------------------------------------------------------------------------

    def trimmer(self, caps: EngineCaps | None = None, *, rank: int = 0, device: torch.device | None = None) -> Trimmer:
        """Return a new trim half."""
        caps = next(iter(self.engines.values())) if caps is None else caps
        trimmer: Trimmer = self.spec.build_trimmer(self._context(caps, rank, device))
        return trimmer

    def trim_draft(
        self, draft: Draft, budget: int, costs: Sequence[CostPoint] = (), *, trimmer: Trimmer | None = None
    ) -> Draft:
        """Return a trimmed copy of `draft`, by a new trim half by default."""
        trimmer = trimmer or self.trimmer()
        trimmed = trimmer.trim(map_tensors(draft, Tensor.clone), self.limits(draft, budget, costs))
        trimmed.validate()
        return trimmed

    def limits(self, draft: Draft, budget: int, costs: Sequence[CostPoint] = ()) -> TrimLimits:
        """Return the limits of a step, on the draft's device."""
        return TrimLimits.build(budget, costs, device=draft.device)

    def empty_draft(
        self, batch_size: int, draft_length: int, *, trees: bool = False, device: torch.device | str = "cpu"
    ) -> Draft:
        """Return an empty draft."""
        return Draft.allocate(batch_size, draft_length, trees=trees, device=device, sources=("kit", "other"))

    def draft(self, *, trees: bool = False) -> Draft:
        """Return a draft by two sources, whose token ids, survival probabilities and context lengths all differ."""
        draft = self.empty_draft(len(_LEVELS), 4, trees=trees)
        draft.reset(torch.arange(1, 1 + len(_LEVELS)))
        for row, (levels, parents) in enumerate(zip(_LEVELS, _PARENTS, strict=True)):
            ids = [10 * row + place for place in range(len(levels))]
            source = [place % 2 for place in range(len(levels))]
            draft.set_row(row, ids, levels, source=source, parents=parents if trees else None)
        return draft

    def verified(self, draft: Draft) -> tuple[EngineBatch, Draft, Verdict]:
        """Return the arguments of `observe` for `draft` with the first token of each row accepted."""
        rows = draft.batch_size
        accepted = draft.lengths.clamp(max=1)
        outcome = Outcome(draft.lengths.clone(), accepted, accepted + 1)
        batch = make_batch([[1, 2, 3]] * rows, num_new=[2] * rows, device=draft.device)
        return batch, draft, Verdict.build(draft.lengths.clone(), outcome)

    def _context(self, caps: EngineCaps, rank: int, device: torch.device | None = None) -> PluginContext:
        sizes = {"vocab_size": 64, "max_slots": 512, "max_length": 1024}
        return context_for(self.spec, self.options, caps, **sizes, device=device or torch.device("cpu"), rank=rank)


def stats_of(count: int, step: int = 0) -> HostStats:
    """Return the figures of `count` requests at a step."""
    names = [f"request {number}" for number in range(count)]
    counts = {"verified": 4 * step, "accepted": 2 * step}
    return HostStats(step, tuple(RequestStats(name, 100, 50, **counts) for name in names))


def curve_of(price: float, jump: float = 0.0) -> tuple[CostPoint, ...]:
    """Return a cost curve by which each draft token costs `price`, and the first one `jump` more."""
    return CostPoint(0, 0.0), CostPoint(1, jump + price), CostPoint(101, jump + 101 * price)


def list_nodes(draft: Draft) -> list[list[tuple[int, float, int, int]]]:
    """Return each row's tokens with their confidences, sources and parent tokens, `ROOT` for the context."""
    found = []
    parents = chain_parents(draft) if draft.parents is None else draft.parents
    columns = (draft.token_ids, draft.confidence, draft.source, parents, draft.lengths)
    for ids, levels, sources, above, count in zip(*(column.tolist() for column in columns), strict=True):
        nodes = zip(ids[:count], levels, sources, above, strict=False)
        found.append([(token, level, source, ROOT if node < 0 else ids[node]) for token, level, source, node in nodes])
    return found


_EVENTS = ("open", "socket.connect", "subprocess.Popen", "os.system")
_FUNCTIONS: Mapping[object, str] = {
    time.sleep: "time.sleep",
    threading.Condition.wait.__code__: "threading.Condition.wait",  # events, queues and futures wait by it
    threading.Thread.join.__code__: "threading.Thread.join",
}
_calls = threading.local()


class _WaitingError(BaseException):
    """Ends a call that may wait for ever."""


@contextmanager
def watch_for_waiting() -> Iterator[set[str]]:
    """Collect the potentially blocking calls of this thread within the context, which ends with the first that waits.

    Calls are named by their audit event or function.  Locks, and queues that are written in C, are not watched: whether
    they wait depends on others.
    """
    if not hasattr(_calls, "found"):
        sys.addaudithook(_note)  # permanent: Python cannot remove an audit hook
    _calls.found = set()
    before = sys.getprofile()
    sys.setprofile(_refuse_to_wait)
    try:
        with suppress(_WaitingError):
            yield _calls.found
    finally:
        sys.setprofile(before)


def _refuse_to_wait(frame: FrameType, event: str, argument: object) -> None:
    called = frame.f_code if event == "call" else argument if event == "c_call" else None
    name = _FUNCTIONS.get(called)
    if name and not (event == "call" and _ends_at_once(frame)):
        _calls.found.add(name)
        raise _WaitingError


def _ends_at_once(frame: FrameType) -> bool:
    """Return whether a wait has no time, is for a thread that has ended, or is that of a thread's start."""
    of = frame.f_locals
    timeout = of.get("timeout")
    has_ended = "self" in of and isinstance(of["self"], threading.Thread) and not of["self"].is_alive()
    callers = [caller.f_code for caller in (frame.f_back, frame.f_back and frame.f_back.f_back) if caller]
    return has_ended or (timeout is not None and timeout <= 0) or threading.Thread.start.__code__ in callers


def _note(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and hasattr(_calls, "found"):
        _calls.found.add(event)
