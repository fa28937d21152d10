"""A policy that stands for the arms of a benchmark in turn: an installed policy, or a constant draft length.

An arm begins where another one ended, in the same process.  The installed policy keeps what it has learnt, receives the
reports of its own steps only, and its steps are numbered without gaps, as if it had served all the time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import specplug
from specplug.plugins.registry import default_registry

LEARNT = "batch"
"""The installed policy, with its default settings."""


@dataclass
class Counts:
    """Counts of the installed policy's own steps, as its plan half is told.

    Attributes:
        steps: steps of the engine in the policy's turns.
        verified: tokens verified beyond one per request, padding included.
        accepted: those of them that were accepted.
    """

    steps: int = 0
    verified: int = 0
    accepted: int = 0


class Arms(specplug.Planner):
    """Plans as the arm whose turn it is."""

    newest: Arms

    def __init__(self, context):  # type: ignore[no-untyped-def]
        self._caps, self._constant = context.caps, None
        self._learnt = default_registry().get(specplug.PolicySpec, LEARNT).build(replace(context, options=None))
        self._own, self._last_step = {}, None  # the policy's numbers of the steps that it has planned; its newest cost
        self._offset = 0  # from them to the engine's, in the policy's turns
        self.counts = Counts()
        Arms.newest = self

    def begin(self, step, draft_length, is_policy):  # type: ignore[no-untyped-def]
        """Begin a turn at this step of the engine: the policy's, a constant draft length's, or one without speculation.

        The operator's control has to see to the last one.
        """
        self.count(step)
        fits = self._caps.fit_draft_length
        self._constant = None if draft_length is None else specplug.StepPlan(fits(draft_length))
        self._offset = step - self.counts.steps if is_policy else None

    def count(self, step):  # type: ignore[no-untyped-def]
        """Return the counts up to this step of the engine."""
        if self._offset is not None:
            self.counts.steps = step - self._offset
        return self.counts

    def plan(self, stats):  # type: ignore[no-untyped-def]
        if self._constant is not None:
            return self._constant
        number = self._own[stats.step] = stats.step - self._offset
        own = specplug.HostStats(number, stats.requests, stats.prefill_tokens, self._last_step)
        return self._learnt.plan(own)

    def observe(self, report):  # type: ignore[no-untyped-def]
        number = self._own.pop(report.step, None)
        if number is None:
            return
        self._last_step = report.cost or self._last_step
        self.counts.verified += self._verified(report)
        self.counts.accepted += report.accepted
        self._learnt.observe(replace(report, step=number))

    def status(self):  # type: ignore[no-untyped-def]
        return {**self._learnt.status(), "counts": asdict(self.counts)}

    def _verified(self, report):  # type: ignore[no-untyped-def]
        """Return how many tokens a step verified beyond one per request, padding included."""
        if report.cost is not None:
            return report.cost.tokens - report.cost.requests - report.cost.prompt_tokens
        padded = self._caps.ragged is specplug.Ragged.PADDED
        return report.requests * report.draft_length if padded else report.verified


@specplug.hookimpl
def specplug_register_policies(register):  # type: ignore[no-untyped-def]
    """Register the policy."""
    register(specplug.PolicySpec(name="arms", factory="specplug_arms:Arms", summary="arms of a benchmark, in turn"))
