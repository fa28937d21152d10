"""Result of one simulated run, and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulate.trajectories import Array


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One entry per step, [T] each.

    Attributes:
        ended: simulated seconds at the end of the step.
        rows: requests that decoded.
        draft_length: draft length of the plan.
        verified: draft tokens that the target ran, padding of rows included and that of graphs not.
        accepted, emitted: draft tokens accepted, and tokens emitted by decoding rows.
        loaded: whether requests waited, or were still to come, when the step began.
    """

    ended: Array
    rows: Array
    draft_length: Array
    verified: Array
    accepted: Array
    emitted: Array
    loaded: Array


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Outcome of one run over R requests.

    Attributes:
        steps: the steps.
        started: [R] float64, when each request arrived; under closed traffic, when it was admitted.
        first, finished: [R] float64, when its first and its last token came.
        outputs: [R] int64, the tokens that it emitted.
        is_closed: whether the traffic was closed.
        concurrency: the most requests that could run at a time, at the lowest limit.
        faults: counts of the policy's faults.
    """

    steps: Steps
    started: Array
    first: Array
    finished: Array
    outputs: Array
    is_closed: bool
    concurrency: int
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Tokens per second: under closed traffic while all places are taken, else from start to end."""
        steps = self.steps
        if not self.is_closed:
            return float(self.outputs.sum() / steps.ended[-1])
        full = np.flatnonzero(steps.loaded)
        first = int(np.argmax(steps.rows >= 0.9 * self.concurrency)) if full.size else 0
        last = int(full[-1]) if full.size and full[-1] > first else steps.ended.size - 1
        began = steps.ended[first - 1] if first else 0.0
        return float(steps.emitted[first : last + 1].sum() / (steps.ended[last] - began))

    @property
    def token_seconds(self) -> Array:
        """Return [R'] float64: mean time per output token after the first, of requests with more than one."""
        several = self.outputs > 1
        return np.asarray((self.finished - self.first)[several] / (self.outputs - 1)[several])

    @property
    def latency(self) -> Array:
        """Return [R] float64: seconds from start to end of each request."""
        return np.asarray(self.finished - self.started)

    @property
    def merit(self) -> float:
        """The figure by which outcomes of one case are ranked: goodput; of open traffic 1 / mean latency."""
        return self.goodput if self.is_closed else float(1 / self.latency.mean())

    @property
    def rejected_share(self) -> float:
        """Draft tokens and padding that were verified and not accepted, per emitted token."""
        steps = self.steps
        return float((steps.verified.sum() - steps.accepted.sum()) / max(1, steps.emitted.sum()))

    @property
    def tau(self) -> float:
        """Tokens emitted per decoding row and step."""
        return float(self.steps.emitted.sum() / max(1, self.steps.rows.sum()))

    def figures(self) -> dict[str, float]:
        """Return the figures by name; times in seconds."""
        return {
            "goodput": self.goodput,
            "tpot_p50": float(np.percentile(self.token_seconds, 50)),
            "tpot_p99": float(np.percentile(self.token_seconds, 99)),
            "latency_p50": float(np.percentile(self.latency, 50)),
            "latency_p99": float(np.percentile(self.latency, 99)),
            "latency_mean": float(self.latency.mean()),
            "rejected_share": self.rejected_share,
            "tau": self.tau,
            "steps": float(self.steps.ended.size),
            "seconds": float(self.steps.ended[-1]),
        }
