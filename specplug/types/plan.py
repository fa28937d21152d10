"""Inputs of both halves of a policy: host figures at least one step old, costs as tables, and the limits of a trim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.types.step import CostPoint, StepCost, StepPlan
from specplug.types.tensors import to_device


class RequestStats(NamedTuple):
    """Host-side figures of one running request.  A tuple, because one is created per request and step.

    Attributes:
        length: tokens so far, prompt included.
        room: tokens that it may still emit.
        cap: the request's own limit on draft tokens; None if it set none.  The pipeline enforces it, whatever the plan.
        verified, accepted: draft tokens verified and accepted so far, bonus excluded.  If the planner's process does
            not know the draft lengths (vLLM's V2 runner), padding counts as verified.
        rejected: drafts so far of which not all verified tokens were accepted.  These counts are only kept for planners
            that read them, see `Planner.reads_requests`.
    """

    request_id: str
    length: int
    room: int
    cap: int | None = None
    verified: int = 0
    accepted: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class HostStats:
    """The figures that a plan is made from.

    Attributes:
        step: number of the step to be planned.
        requests: the requests that decode in this step.  Read them within `plan`; engines compute the figures of single
            requests only if they are read, and their number is always cheap.
        last_step: cost of the newest step whose duration is known; None before the first.
        last_plan: the plan of the step before, with the limits of all policies and requests; None before the first.
    """

    step: int
    requests: Sequence[RequestStats]
    last_step: StepCost | None = None
    last_plan: StepPlan | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """Results of one finished step, as known in the process of the plan half.

    Attributes:
        step: the `HostStats.step` of the plan that the step's drafts followed.
        draft_length: the most draft tokens per request under that plan, as it was carried out.
        requests: number of requests that the step was planned for and that might draft.  Those with a cap of 0, their
            own or the plan's, are no evidence: no other count but `batch_size` includes them.
        batch_size: number of requests that the step was planned for.
        verified, accepted: draft tokens of all requests, counted as in `RequestStats`.  The token that ended a request
            is not among them: what clients received is one token more per request, and none after its end.
        cost: cost of the step; None if its duration is not known.
        runs: for each request with drafts, the length of its run before and after the step: the tokens that it emitted
            since a draft of it was last not accepted in full.  Empty where the engine does not plan in its scheduler.
        expected: [K] floats, what the step's drafts were expected to yield: entry k - 1 is the sum over rows of the
            probability that the target accepts the first k draft tokens.  So drafts of at most k tokens were expected
            to yield the sum of the first k entries.  It covers all K of the engine, whatever was planned.  None where
            drafts have no confidences, or none are known.
        expected_rows: number of rows that `expected` is of.
    """

    step: int
    draft_length: int
    requests: int
    batch_size: int
    verified: int
    accepted: int
    cost: StepCost | None = None
    runs: Sequence[tuple[int, int]] = ()
    expected: Sequence[float] | None = None
    expected_rows: int = 0

    @classmethod
    def build(
        cls,
        step: int,
        draft_length: int,
        requests: int,
        counts: Sequence[tuple[int, int]],
        *,
        batch_size: int | None = None,
        cost: StepCost | None = None,
        runs: Sequence[tuple[int, int]] = (),
        expected: Sequence[float] | None = None,
        expected_rows: int = 0,
    ) -> StepReport:
        """Sum up `counts`, the verified and accepted draft tokens of each request that might draft, by default all."""
        verified = sum([verified for verified, _ in counts])
        accepted = sum([accepted for _, accepted in counts])
        size = requests if batch_size is None else batch_size
        return cls(step, draft_length, requests, size, verified, accepted, cost, runs, expected, expected_rows)


LEVELS = 4096
"""Levels of survival from 0 to 1.  Survival and costs are compared in integers, so that all forms agree."""


@lru_cache(maxsize=16)
def cost_table(costs: tuple[CostPoint, ...], places: int | None = None) -> npt.NDArray[np.int64]:
    """Return [M + 1], read-only: the costs of 0 to M = `places` draft tokens by a curve, in `LEVELS` per token.

    By default M is the curve's last point, beyond which costs are constant.  They are limited to 2^28 tokens.
    """
    if places is None:
        places = costs[-1].draft_tokens if costs else 0
    tokens, cost = np.array(costs or ((0, 0.0),), np.float64).T
    dense = np.interp(np.arange(places + 1), tokens, cost).clip(-(2.0**28), 2.0**28)
    table: npt.NDArray[np.int64] = np.rint(dense * LEVELS).astype(np.int64)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def first_rise(costs: tuple[CostPoint, ...]) -> float:
    """Return the least number of draft tokens beyond which one more costs anything; infinite if none ever does."""
    rises = np.flatnonzero(np.diff(cost_table(costs)) > 0)
    return int(rises[0]) if rises.size else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class TrimLimits:
    """The bounds of one step, all on the device of the drafts.

    Attributes:
        token_budget: 0-d int64, the most draft tokens of the whole batch; at least 0.
        costs: [M + 1] int64, `StepPlan.costs` in `LEVELS` per token: entry n is the cost of n draft tokens, and the
            last one also that of more.
    """

    token_budget: Tensor
    costs: Tensor

    @classmethod
    def build(
        cls, token_budget: int, costs: Sequence[CostPoint] = (), *, device: torch.device | str = "cpu"
    ) -> TrimLimits:
        """Move host values to a device, without waiting for it."""
        budget = torch.full((), token_budget, dtype=torch.int64, device=device)
        return cls(budget, _moved(tuple(costs), budget.device))


@lru_cache(maxsize=64)
def _moved(costs: tuple[CostPoint, ...], device: torch.device) -> Tensor:
    """Return a curve's table on a device; plans keep their costs for several steps, and nobody writes to them."""
    return to_device([torch.from_numpy(cost_table(costs).copy())], device)[0]
