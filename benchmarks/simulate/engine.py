"""Engine of the simulation: continuous batching over recorded trajectories, one step at a time.

As in vLLM's scheduler, rows that decode come first in a step, and prompts fill the rest of the token budget in chunks,
in order of arrival.  There is no preemption.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.arrivals import Traffic
from benchmarks.simulate.disturbance import Clock
from benchmarks.simulate.modes import Mode
from benchmarks.simulate.outcome import Outcome, Steps
from benchmarks.simulate.step import Decider, Row, StepResult, StepView
from benchmarks.simulate.surface import Surface
from benchmarks.simulate.trajectories import Array, Drafts, Trajectories
from specplug.types.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the scheduler.

    Attributes:
        step_tokens: most tokens of a step.
        cached_share: share of each prompt that the prefix cache holds, so that no prefill computes it.
        cached_context: tokens of context before each prompt, all of them cached.
    """

    step_tokens: int = 8192
    cached_share: float = 0.5
    cached_context: int = 0


class Simulation:
    """One run.

    Args:
        traffic, trajectories: the requests; each emits exactly its recorded output.
        surface: the time of a step.
        mode: how drafts are verified.
        decider: what chooses the drafts.
        clock: simulated time.
        limits: of the scheduler.
    """

    def __init__(
        self,
        traffic: Traffic,
        trajectories: Trajectories,
        surface: Surface,
        mode: Mode,
        decider: Decider,
        clock: Clock,
        limits: Limits = Limits(),
    ) -> None:
        self._traffic, self._trajectories, self._surface = traffic, trajectories, surface
        self._mode, self._decider, self._clock, self._limits = mode, decider, clock, limits
        items = traffic.items
        self._names = [f"{name}#{index}" for index, name in enumerate(trajectories.names[items])]
        self._outputs, self._prompts = trajectories.outputs[items], trajectories.prompts[items]
        self._first_entry = trajectories.starts[items]
        self._computed = np.minimum(self._prompts * limits.cached_share, self._prompts - 1).astype(np.int64)
        self._emitted = np.zeros(items.size, np.int64)
        self._lengths = self._prompts + limits.cached_context
        self._missed = np.zeros(items.size, np.int64)
        self._admitted, self._first, self._finished = (np.full(items.size, np.nan) for _ in range(3))
        self._rows: list[Row] = []
        self._indices = np.zeros(0, np.int64)
        self._prefilling: list[int] = []
        self._next = 0  # index of the next request to admit
        self._draft_length = 0
        self._log: list[tuple[float, ...]] = []

    def run(self) -> Outcome:
        """Serve all requests."""
        while self._next < self._traffic.items.size or self._rows or self._prefilling:
            self._step()
        columns = np.array(self._log).T
        return Outcome(
            Steps(columns[0], *(column.astype(np.int64) for column in columns[1:])),
            self._admitted if self._traffic.is_closed else self._traffic.arrivals,
            self._first,
            self._finished,
            self._emitted,
            self._traffic.is_closed,
            int(self._traffic.limits.min()),
            self._decider.faults,
        )

    def _step(self) -> None:
        traffic, clock = self._traffic, self._clock
        if not self._rows and not self._prefilling:
            clock.now = max(clock.now, float(traffic.arrivals[self._next]))
        is_loaded = self._next < traffic.items.size
        self._admit()
        view, chunks = self._view()
        plan = self._decider.plan(view)
        draft_length = min(plan.draft_length, max(0, self._limits.step_tokens // max(1, len(view.rows)) - 1))
        drafts = self._drafts(view, plan, draft_length)
        kept = drafts.lengths
        if view.rows:
            kept = np.minimum(self._decider.keep(view, drafts, plan), kept)
        accepted = np.minimum(drafts.accepted, kept)
        emitted = np.minimum(accepted + 1, (self._outputs - self._emitted)[view.indices])
        tokens, captured = self._mode.charge(kept, draft_length, plan.token_budget)
        began = clock.now
        clock.spend(self._surface.seconds(view.work(tokens, captured, draft_length)))
        self._log.append(
            (clock.now, len(view.rows), draft_length, tokens - len(view.rows), accepted.sum(), emitted.sum(), is_loaded)
        )
        all_tokens = tokens + view.prefill_tokens
        self._decider.observe(view, StepResult(kept, accepted, emitted, all_tokens, draft_length, began, clock.now))
        self._advance(view, emitted, draft_length)
        self._prefill(chunks)

    def _admit(self) -> None:
        """Admit requests that have arrived while the limit allows."""
        traffic = self._traffic
        while self._next < traffic.items.size and traffic.arrivals[self._next] <= self._clock.now:
            if len(self._rows) + len(self._prefilling) >= traffic.limits[self._next]:
                return
            self._prefilling.append(self._next)
            self._admitted[self._next] = self._clock.now
            self._next += 1

    def _view(self) -> tuple[StepView, list[tuple[int, int]]]:
        """Return the step's view, and its prompt chunks as (index of the request, tokens)."""
        left = max(0, self._limits.step_tokens - len(self._rows) * (1 + self._draft_length))
        chunks, pairs = [], 0
        for index in self._prefilling:
            size = min(left, int(self._prompts[index] - self._computed[index]))
            if not size:
                break
            chunks.append((index, size))
            pairs += size * (self._limits.cached_context + int(self._computed[index]) + (size + 1) // 2)
            left -= size
        indices = self._indices
        arrived = int(np.searchsorted(self._traffic.arrivals, self._clock.now, side="right"))
        view = StepView(
            self._rows,
            indices,
            self._first_entry[indices] + self._emitted[indices] - 1,
            self._lengths[indices],
            arrived - self._next,
            sum(size for _, size in chunks),
            pairs,
            int(self._missed[indices].sum()),
            self._draft_length,
        )
        return view, chunks

    def _drafts(self, view: StepView, plan: StepPlan, draft_length: int) -> Drafts:
        """Return the drafts of the rows, within the plan's caps."""
        drafts = self._trajectories.drafts(view.entries, draft_length)
        if not plan.caps or not draft_length:
            return drafts
        caps = np.array([plan.draft_length_for(row.request_id) for row in view.rows], np.int64)
        lengths = np.minimum(drafts.lengths, caps)
        return drafts._replace(lengths=lengths, accepted=np.minimum(drafts.accepted, lengths))

    def _advance(self, view: StepView, emitted: Array, draft_length: int) -> None:
        """Append the emitted tokens, and end the requests whose output is complete."""
        indices = view.indices
        if not indices.size:
            return
        self._draft_length = draft_length
        self._emitted[indices] += emitted
        self._lengths[indices] += emitted
        self._missed[indices] = 0 if draft_length else self._missed[indices] + emitted
        done = self._emitted[indices] >= self._outputs[indices]
        if done.any():
            self._finished[indices[done]] = self._clock.now
            self._decider.forget([self._names[index] for index in indices[done]])
            self._indices = indices[~done]
            self._rows = [row for row, is_done in zip(self._rows, done.tolist(), strict=True) if not is_done]

    def _prefill(self, chunks: list[tuple[int, int]]) -> None:
        """Compute prompt chunks; a prompt that is complete emits its first token, and decodes from the next step on."""
        begun = []
        for index, size in chunks:
            self._computed[index] += size
            if self._computed[index] < self._prompts[index]:
                continue
            self._prefilling.remove(index)
            self._emitted[index] = 1
            self._lengths[index] += 1
            self._first[index] = self._clock.now
            if self._outputs[index] == 1:
                self._finished[index] = self._clock.now
            else:
                begun.append(index)
        if begun:
            self._rows = [*self._rows, *(Row(self._names[index], index, self._lengths) for index in begun)]
            self._indices = np.concatenate([self._indices, np.array(begun, np.int64)])
