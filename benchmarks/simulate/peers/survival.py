"""Survival top-k over a profiled cost curve: vLLM's adaptive verification, and a gate with two regimes on top of it.

Each step verifies the number of draft tokens with the most expected tokens per second on the profiled curve, from
confidences one step old, and gives them to the likeliest tokens (vLLM 0.32, `adaptive_verification.py`).  Confidences
are `BucketCounts`, as in vLLM's suffix speculator.  The curve has no host time, and new requests count as certain, also
as there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmarks.simulate.matching import BucketCounts
from benchmarks.simulate.modes import CAPTURED_TOKENS
from benchmarks.simulate.peers.setup import PeerSetup
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.trajectories import Array
from specplug.interfaces import Planner, PluginContext, Trimmer
from specplug.plugins.specs import PolicySpec
from specplug.trim.ranking import rank_tokens
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.plan import HostStats, StepPlan
from specplug.types.trim import TrimLimits
from specplug.types.verdict import Verdict

KNEE = 1.15
"""The gate's knee is where the target's kernels take so many times the time of the smallest batch."""


class Counts:
    """Acceptance counts, shared by both halves.

    Attributes:
        survival: [B, N] float64, the newest drafts' survival probabilities, one step old when a plan is made.
    """

    def __init__(self, setup: PeerSetup, *, own_confidences: bool) -> None:
        self._features, self._uses_drafts = setup.features, own_confidences
        self._gamma = setup.profile.mode.gamma
        self._counts = BucketCounts(self._gamma)
        self._cells: tuple[Array, Array] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.survival = np.zeros((0, self._gamma))

    def rated(self, draft: Draft) -> Draft:
        """Return the draft with the confidences that the peer uses, and store its survival probabilities."""
        size = draft.draft_length
        self._cells = draft.source[:, 0].numpy(), self._features.matches.astype(np.int64)
        if not self._uses_drafts:
            rates = torch.from_numpy(self._counts.rates(*self._cells)[:, :size].astype(np.float32))
            draft = replace(draft, confidence=torch.where(draft.mask(), rates, 0.0))
        survival = draft.survival().numpy().astype(np.float64)
        self.survival = np.zeros((draft.batch_size, self._gamma))
        self.survival[:, :size] = survival
        return draft

    def learn(self, verified: Array, accepted: Array) -> None:
        """Count the tokens whose acceptance was decided."""
        self._counts.learn(*self._cells, verified, accepted)


class SurvivalPlanner(Planner):
    """Plans the budget with the most expected tokens per second on the profiled curve."""

    def __init__(self, context: PluginContext, counts: Counts, profile: Profile, knee: int = 0) -> None:
        self._counts, self._profile, self._knee = counts, profile, knee
        self._gamma, self._lengths = context.caps.max_draft_length, profile.mode.lengths
        self._table = _table(profile)

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the budget, or below the gate's knee the longest captured length that stays below it."""
        rows = len(stats.requests)
        below = max((length for length in self._lengths if rows * (length + 1) <= self._knee), default=0)
        if below:
            return StepPlan(below)
        return StepPlan(self._gamma, token_budget=max(1, self._budget(rows, stats.prefill_tokens)))

    def _budget(self, rows: int, prefill_tokens: int) -> int:
        survival = np.ones((rows, self._gamma))
        known = self._counts.survival[:rows]
        survival[: len(known)] = known
        expected = rows + np.concatenate([[0.0], np.cumsum(np.sort(survival.ravel())[::-1])])
        first = min(rows + prefill_tokens, self._table.size - 1)
        seconds = self._profile.drafting(rows) + self._table[first : first + expected.size]
        return int(np.argmax(expected[: seconds.size] / seconds))


class SurvivalTrim(Trimmer):
    """Keeps the likeliest tokens of the budget."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return True, so that every draft is rated."""
        return True

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return the draft cut to the budget."""
        _, rank = rank_tokens(self._counts.rated(draft))
        return draft.keep(rank < limits.token_budget)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Count the verdicts."""
        if draft.draft_length:
            self._counts.learn(verdict.verified.numpy(), verdict.accepted.numpy())


def survival(setup: PeerSetup) -> PolicySpec:
    """Return the spec of vLLM's adaptive verification."""
    counts = Counts(setup, own_confidences=False)
    return _spec("survival", "survival top-k over a profiled curve", counts, setup.profile, knee=0)


def gate(setup: PeerSetup) -> PolicySpec:
    """Return the spec of a gate: equal captured lengths below the profiled knee, mixed lengths above it.

    Mixed lengths follow the drafts' own confidences.
    """
    sizes, seconds = setup.profile.verification
    knee = int(sizes[seconds <= KNEE * seconds[0]][-1])
    counts = Counts(setup, own_confidences=True)
    summary = "one captured length below a knee, mixed lengths above"
    return _spec("gate", summary, counts, setup.profile, min(knee, CAPTURED_TOKENS[-1]))


def _spec(name: str, summary: str, counts: Counts, profile: Profile, knee: int) -> PolicySpec:
    return PolicySpec(
        name=name,
        factory=lambda context: SurvivalPlanner(context, counts, profile, knee),
        trimmer=lambda context: SurvivalTrim(counts),
        summary=summary,
    )


def _table(profile: Profile) -> Array:
    """Return [T] float64, the seconds of each number of tokens: captured sizes are steps, straight lines follow."""
    sizes, seconds = profile.verification
    values = np.arange(sizes[-1] + 1)
    found = seconds[np.minimum(np.searchsorted(sizes, values), sizes.size - 1)]
    beyond = sizes > CAPTURED_TOKENS[-1]
    smooth = values > CAPTURED_TOKENS[-1]
    found[smooth] = np.interp(values[smooth], sizes[beyond], seconds[beyond])
    return np.asarray(found)
