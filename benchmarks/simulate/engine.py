"""Engine of the simulation: continuous batching over recorded trajectories, one step at a time.

As in vLLM's scheduler, rows that decode come first in a step, and prompts fill the rest of the token budget in chunks,
in order of arrival.  There is no preemption.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.simulate.modes import Mode
from benchmarks.simulate.steps import Decider, Outcome, StepResult, Steps, StepView
from benchmarks.simulate.surface import Surface
from benchmarks.simulate.traffic import Clock
from benchmarks.simulate.trajectories import Array, Drafts, Trajectories
from specplug.types.step import StepPlan


class Limits(NamedTuple):
    """Limits of the scheduler."""

    step_tokens: int = 8192  # most tokens of a step
    cached_share: float = 0.5  # share of each prompt that the prefix cache holds, so that no prefill computes it


class Simulation:
    """One run.

    Args:
        items: [R] int64, indices of the trajectories, in order of admission; each emits exactly its recorded output.
        most: [R] int64, the most requests that run at a time from the admission of each request on.
        surface, mode, decider: the time of a step, how drafts are verified, and what chooses them.
        clock, limits: simulated time, and the scheduler's limits.
    """

    def __init__(
        self,
        items: Array,
        most: Array,
        trajectories: Trajectories,
        surface: Surface,
        mode: Mode,
        decider: Decider,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._most, self._trajectories, self._surface = most, trajectories, surface
        self._mode, self._decider, self._clock, self._limits = mode, decider, clock, limits
        self._outputs, self._prompts = trajectories.outputs[items], trajectories.prompts[items]
        self._first_entry = trajectories.starts[items]
        self._computed = np.minimum(self._prompts * limits.cached_share, self._prompts - 1).astype(np.int64)
        self._emitted = np.zeros(items.size, np.int64)
        self._lengths = self._prompts.copy()
        self._missed = np.zeros(items.size, np.int64)
        self._admitted, self._finished = (np.full(items.size, np.nan) for _ in range(2))
        self._rows = np.zeros(0, np.int64)  # indices of the requests that decode
        self._prefilling: list[int] = []
        self._next = 0  # index of the next request to admit
        self._draft_length = 0
        self._log: list[tuple[float, ...]] = []

    def run(self) -> Outcome:
        """Serve all requests."""
        while self._next < self._most.size or self._rows.size or self._prefilling:
            self._step()
        columns = np.array(self._log).T
        return Outcome(
            Steps(columns[0], *(column.astype(np.int64) for column in columns[1:])),
            self._admitted,
            self._finished,
            self._emitted,
            int(self._most.min()),
            self._decider.faults,
        )

    def _step(self) -> None:
        clock, is_loaded = self._clock, self._next < self._most.size
        self._admit()
        view, chunks = self._view()
        plan = self._decider.plan(view)
        draft_length = min(plan.draft_length, max(0, self._limits.step_tokens // max(1, view.rows.size) - 1))
        drafts = self._drafts(view, plan, draft_length)
        kept = drafts.lengths
        if view.rows.size:
            kept = np.minimum(self._decider.keep(view, drafts, plan), kept)
        accepted = np.minimum(drafts.accepted, kept)
        emitted = np.minimum(accepted + 1, (self._outputs - self._emitted)[view.rows])
        tokens, captured = self._mode.charge(kept, draft_length, plan.token_budget)
        began = clock.now
        clock.spend(self._surface.seconds(view.work(tokens, captured, draft_length)))
        counts = (view.rows.size, draft_length, tokens - view.rows.size, accepted.sum(), emitted.sum())
        self._log.append((clock.now, *counts, is_loaded))
        all_tokens = tokens + view.prefill_tokens
        self._decider.observe(view, StepResult(kept, accepted, emitted, all_tokens, draft_length, began, clock.now))
        self._advance(view, emitted, draft_length)
        self._prefill(chunks)

    def _admit(self) -> None:
        """Admit requests while the limit allows."""
        while self._next < self._most.size:
            if self._rows.size + len(self._prefilling) >= self._most[self._next]:
                return
            self._prefilling.append(self._next)
            self._admitted[self._next] = self._clock.now
            self._next += 1

    def _view(self) -> tuple[StepView, list[tuple[int, int]]]:
        """Return the step's view, and its prompt chunks as (index of the request, tokens)."""
        left = max(0, self._limits.step_tokens - self._rows.size * (1 + self._draft_length))
        chunks, pairs = [], 0
        for index in self._prefilling:
            size = min(left, int(self._prompts[index] - self._computed[index]))
            if not size:
                break
            chunks.append((index, size))
            pairs += size * (int(self._computed[index]) + (size + 1) // 2)
            left -= size
        rows = self._rows
        view = StepView(
            rows,
            self._first_entry[rows] + self._emitted[rows] - 1,
            self._lengths[rows],
            self._most.size - self._next,
            sum(size for _, size in chunks),
            pairs,
            int(self._missed[rows].sum()),
            self._draft_length,
        )
        return view, chunks

    def _drafts(self, view: StepView, plan: StepPlan, draft_length: int) -> Drafts:
        """Return the drafts of the rows, within the plan's caps."""
        drafts = self._trajectories.drafts(view.entries, draft_length)
        if not plan.caps or not draft_length:
            return drafts
        caps = np.array([plan.draft_length_for(str(row)) for row in view.rows.tolist()], np.int64)
        lengths = np.minimum(drafts.lengths, caps)
        return drafts._replace(lengths=lengths, accepted=np.minimum(drafts.accepted, lengths))

    def _advance(self, view: StepView, emitted: Array, draft_length: int) -> None:
        """Append the emitted tokens, and end the requests whose output is complete."""
        rows = view.rows
        if not rows.size:
            return
        self._draft_length = draft_length
        self._emitted[rows] += emitted
        self._lengths[rows] += emitted
        self._missed[rows] = 0 if draft_length else self._missed[rows] + emitted
        done = self._emitted[rows] >= self._outputs[rows]
        if done.any():
            self._finished[rows[done]] = self._clock.now
            self._decider.forget([str(row) for row in rows[done].tolist()])
            self._rows = rows[~done]

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
            if self._outputs[index] == 1:
                self._finished[index] = self._clock.now
            else:
                begun.append(index)
        self._rows = np.concatenate([self._rows, np.array(begun, np.int64)])
