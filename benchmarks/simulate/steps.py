"""One step as deciders see it, the interface of deciders, and the outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.simulate.modes import launch
from benchmarks.simulate.surface import Regime, StepWork
from benchmarks.simulate.trajectories import Array, Drafts
from specplug.types.step import StepPlan


class StepView(NamedTuple):
    """What is known when a step begins, of the B requests that decode."""

    rows: Array  # [B] int64, the requests' indices in the traffic
    entries: Array  # [B] int64, their positions' entries in the trajectories
    lengths: Array  # [B] int64, their tokens so far, prompts included
    num_waiting: int  # requests that wait for a slot
    prefill_tokens: int  # prompt tokens of the step
    prefill_pairs: int  # see `StepWork`
    missed: int  # tokens that the proposer has not ingested
    previous: int  # draft length of the step before

    @property
    def context_tokens(self) -> int:
        """The rows' tokens so far, in all."""
        return int(self.lengths.sum())

    def work(self, tokens: int, captured: Regime, draft_length: int) -> StepWork:
        """Return the work of the step if its rows verify so many tokens; see `Mode.charge`."""
        padded, regime = launch(tokens, captured, self.prefill_tokens)
        return StepWork(
            self.rows.size,
            padded,
            self.context_tokens,
            draft_length,
            regime,
            self.prefill_tokens,
            self.prefill_pairs,
            changed=self.rows.size > 0 and draft_length != self.previous,
            missed=self.missed,
        )


class StepResult(NamedTuple):
    """What a step did."""

    kept: Array  # [B] int64, draft tokens of each row that were verified, padding excluded
    accepted: Array  # [B] int64
    emitted: Array  # [B] int64
    tokens: int  # tokens that the target ran, prompt tokens and padding of rows included
    draft_length: int  # the one that was verified
    began: float  # simulated seconds
    ended: float


class Decider:
    """What chooses the drafts: a policy, or the clairvoyant."""

    @property
    def faults(self) -> dict[str, int]:
        """Faults by kind."""
        return {}

    def plan(self, view: StepView) -> StepPlan:
        """Return the plan of the drafts that this step verifies."""
        raise NotImplementedError

    def keep(self, view: StepView, drafts: Drafts, plan: StepPlan) -> Array:
        """Return [B] int64, the length that each row's draft is cut to."""
        raise NotImplementedError

    def observe(self, view: StepView, result: StepResult) -> None:
        """Learn from a step."""

    def forget(self, request_ids: list[str]) -> None:
        """Drop what is known of requests that have ended."""


class Steps(NamedTuple):
    """One entry per step, [T] each."""

    ended: Array  # simulated seconds at the end of the step
    rows: Array  # requests that decoded
    draft_length: Array  # that of the plan
    verified: Array  # draft tokens that the target ran, padding of rows included and that of graphs not
    accepted: Array
    emitted: Array  # by decoding rows
    loaded: Array  # whether requests waited when the step began; in rollouts all steps count


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Outcome of one run over R requests."""

    steps: Steps
    started: Array  # [R] float64, when each request was admitted
    finished: Array  # [R] float64, when its last token came
    outputs: Array  # [R] int64, the tokens that it emitted
    concurrency: int  # the most requests that could run at a time, at the lowest limit
    faults: dict[str, int]  # the policy's, by kind

    @property
    def goodput(self) -> float:
        """Tokens per second while all places are taken, or of whole rollouts."""
        steps = self.steps
        full = np.flatnonzero(steps.loaded)
        first = int(np.argmax(steps.rows >= 0.9 * self.concurrency)) if 0 < full.size < steps.ended.size else 0
        last = int(full[-1]) if full.size and full[-1] > first else steps.ended.size - 1
        began = steps.ended[first - 1] if first else 0.0
        return float(steps.emitted[first : last + 1].sum() / (steps.ended[last] - began))

    def figures(self) -> dict[str, float]:
        """Return the figures by name; times in seconds."""
        steps, latency = self.steps, self.finished - self.started
        return {
            "goodput": self.goodput,
            "latency_p50": float(np.percentile(latency, 50)),
            "latency_p99": float(np.percentile(latency, 99)),
            "rejected_share": float((steps.verified.sum() - steps.accepted.sum()) / max(1, steps.emitted.sum())),
            "tau": float(steps.emitted.sum() / max(1, steps.rows.sum())),
            "steps": float(steps.ended.size),
            "seconds": float(steps.ended[-1]),
        }
