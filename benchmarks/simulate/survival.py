"""Survival top-k over a profiled cost curve: vLLM's adaptive verification, and a gate with two regimes on top of it.

Each step verifies the number of draft tokens with the most expected tokens per second on the profiled curve, from
confidences one step old, and gives them to the likeliest tokens (vLLM 0.32, `adaptive_verification.py`).  Confidences
are `Counts`, as in vLLM's suffix speculator.  The curve has no host time, and new requests count as certain, also
as there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmarks.simulate.modes import CAPTURED_TOKENS
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.recording import LEAST
from benchmarks.simulate.trajectories import Array
from specplug.interfaces import Planner, PluginContext, Trimmer
from specplug.plugins.specs import PolicySpec
from specplug.steps.trim import rank_tokens
from specplug.types.plan import HostStats, TrimLimits
from specplug.types.step import Draft, EngineBatch, StepPlan, Verdict

MAX_SOURCES = 8

HALVING = 1024
"""Steps after which counts are halved."""

KNEE = 1.15
"""The gate's knee is where the target's kernels take so many times the time of the smallest batch."""


class Counts:
    """Acceptance counts by source of a draft's first token, -1 for none, bucket of its match, and position.

    Attributes:
        survival: [B, N] float64, the newest drafts' survival probabilities, one step old when a plan is made.
    """

    def __init__(self, profile: Profile, *, own_confidences: bool) -> None:
        self._profile, self._uses_drafts, self._gamma = profile, own_confidences, profile.mode.gamma
        self._counts = np.zeros((MAX_SOURCES + 1, len(LEAST) + 1, self._gamma, 2), np.int64)
        self._steps = 0
        self._cells = np.zeros((2, 0), np.int64)  # [2, B], source plus 1, and bucket, of the newest drafts
        self.survival = np.zeros((0, self._gamma))

    def rated(self, draft: Draft) -> Draft:
        """Return the draft with the confidences that the peer uses, and store its survival probabilities."""
        size = draft.draft_length
        self._cells = np.array([draft.source[:, 0].numpy() + 1, self._profile.matches], np.int64)
        if not self._uses_drafts:
            counts = self._counts[*self._cells, :size]
            rates = torch.from_numpy(((counts[..., 0] + 1) / (counts[..., 1] + 2)).astype(np.float32))
            draft = replace(draft, confidence=torch.where(draft.mask(), rates, 0.0))
        self.survival = np.zeros((draft.batch_size, self._gamma))
        self.survival[:, :size] = draft.survival().numpy()
        return draft

    def learn(self, verified: Array, accepted: Array) -> None:
        """Count the tokens of one step whose acceptance was decided; both are [B] integers."""
        places, (sources, buckets) = np.arange(self._gamma), self._cells
        for kind, most in ((0, accepted), (1, np.minimum(accepted + 1, verified))):
            rows, columns = np.nonzero(places < most[:, None])
            np.add.at(self._counts[..., kind], (sources[rows], buckets[rows], columns), 1)
        self._steps += 1
        if self._steps % HALVING == 0:
            self._counts >>= 1


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
        return StepPlan(self._gamma, token_budget=max(1, self._budget(rows, self._profile.prefill_tokens)))

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

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Count the verdicts."""
        if draft.draft_length:
            self._counts.learn(verdict.verified.numpy(), verdict.accepted.numpy())


def survival(profile: Profile) -> PolicySpec:
    """Return the spec of vLLM's adaptive verification."""
    counts = Counts(profile, own_confidences=False)
    return _spec("survival", "survival top-k over a profiled curve", counts, profile, knee=0)


def gate(profile: Profile) -> PolicySpec:
    """Return the spec of a gate: equal captured lengths below the profiled knee, mixed lengths above it.

    Mixed lengths follow the drafts' own confidences.
    """
    sizes, seconds = profile.verification
    knee = int(sizes[seconds <= KNEE * seconds[0]][-1])
    counts = Counts(profile, own_confidences=True)
    summary = "one captured length below a knee, mixed lengths above"
    return _spec("gate", summary, counts, profile, min(knee, CAPTURED_TOKENS[-1]))


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
