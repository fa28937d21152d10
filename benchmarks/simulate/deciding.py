"""PolicyDecider: a registered policy in the simulation, through the same classes as in the engines.

The plan half runs in `ServerPlanner`, the trim half in `DraftStage` over drafts as tensors.  Neither sees the surface,
the outputs, or what a draft's fate will be.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from benchmarks.simulate.peers import PEERS
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.steps import Decider, StepResult, StepView
from benchmarks.simulate.trajectories import Array, Drafts
from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext, Proposer
from specplug.operator.server_planner import ServerPlanner
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec, ProposerSpec, hookimpl
from specplug.settings.sources import load_settings
from specplug.steps.draft_report import NO_DRAFTS, DraftReport
from specplug.steps.step_planner import UNREPORTED, Bounds
from specplug.steps.trim import best_count, completed
from specplug.types.caps import ProposerCaps
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft, EngineBatch, Outcome, StepCost, StepPlan, Verdict

PLENTY = 1 << 20
"""Room that never limits a draft, so that it does not reveal where an output ends."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy to judge."""

    label: str  # in tables
    name: str  # in the registry
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings of policies, by name
    peer: str | None = None  # name in `PEERS`, to be registered for one run only; None for installed policies


class Recorded(Proposer):
    """Stands for the proposer whose drafts were recorded."""

    def __init__(self, context: PluginContext) -> None: ...

    def propose(self, batch: Any, limits: Any, draft: Any) -> None:
        """Draft nothing: the simulation looks drafts up."""


class _Plugin:
    """Registration of the recorded proposer and of a peer, for one run."""

    def __init__(self, peer: PolicySpec | None) -> None:
        self._peer = peer

    @hookimpl
    def specplug_register_proposers(self, register: Any) -> None:
        register(ProposerSpec(name="recorded", factory=Recorded, summary="drafts of a recording", caps=ProposerCaps()))

    @hookimpl
    def specplug_register_policies(self, register: Any) -> None:
        if self._peer is not None:
            register(self._peer)


class PolicyDecider(Decider):
    """Runs one policy.

    Args:
        policy: the policy.
        profile: the server and its mode, whose capabilities the policy is built with; only peers receive the rest.
        requests: number of requests; each has a slot of its own.

    Raises:
        SettingsError, PluginError: the policy is unknown, or its options are wrong.
    """

    def __init__(self, policy: Policy, profile: Profile, requests: int) -> None:
        peer = PEERS[policy.peer] if policy.peer else None
        mode, registry = profile.mode, Registry.discover()
        registry.add(_Plugin(peer.build(profile) if peer else None), Owner("simulate", "benchmarks", ""))
        found = load_settings(
            {
                "policy": policy.name,
                "proposer": "recorded",
                "num_speculative_tokens": mode.gamma,
                "options": policy.options,
                "faults": {"host_deadline_ms": None},
            },
            flags_origin="benchmarks.simulate",
            registry=registry,
        )
        context = PluginContext(mode.caps, vocab_size=1, max_slots=requests, max_length=PLENTY)
        self._lengths = lengths = np.zeros(requests, np.int64)
        self._planner = ServerPlanner[int](
            found, context, str, lambda row: int(lengths[row]), lambda row: Bounds(PLENTY, None), registry
        )
        self._stage = build_draft_stage(found.settings, registry, context)
        self._mode, self._profile, self._sources = mode, profile, tuple(profile.trajectories.sources)
        lag = 0 if peer is not None and peer.in_worker else mode.lag
        self._plans = deque([UNREPORTED] * lag, maxlen=lag + 1)
        self._reports = deque([False] * lag, maxlen=lag + 1)  # whether the drafts of these plans are reported
        self._trimmed: Draft | None = None
        if peer is None:  # peers receive the profile itself
            self._planner.stage.calibrate(profile.timed_steps())
        # Of each request's newest drafts, where an engine derives the budget from costs; column 0 is NaN at first.
        unknown = np.zeros((requests, mode.gamma))
        unknown[:, :1] = np.nan
        self._survival = unknown if mode.name == "cut" else None

    @property
    def faults(self) -> dict[str, int]:
        """Faults of both halves, by kind."""
        counts: Counter[str] = Counter()
        for (_, kind), count in self._planner.faults.items():
            counts[kind] += count
        for kinds in self._stage.metrics.snapshot().faults.values():
            counts.update(kinds)
        return dict(counts)

    def plan(self, view: StepView) -> StepPlan:
        """Make the newest plan, and return the one made `lag` steps before; no drafts while there is none.

        Where drafts are cut on the device, its costs set a budget, as the adapter derives it.
        """
        self._trimmed, planner = None, self._planner
        self._profile.prefill_tokens = view.prefill_tokens
        self._lengths[view.rows] = view.lengths
        planner.make(view.rows.tolist())
        self._plans.append(planner.launch(0.0, StepCost(0, 0, 0, 0, 0.0), timed=False))
        self._reports.append(planner.wants_report)
        plan = self._plans[0].plan
        if self._survival is None or not plan.costs or not view.rows.size:
            return plan
        survival = self._survival[view.rows]
        filled = completed(survival, ~np.isnan(survival[:, 0]))[:, : plan.draft_length]
        worth = best_count(filled, plan.costs, plan.budget_of(filled.size))
        return replace(plan, token_budget=worth, costs=())

    def keep(self, view: StepView, drafts: Drafts, plan: StepPlan) -> Array:
        """Trim the drafts if an engine would."""
        batch_size, draft_length = drafts.confidence.shape
        if self._survival is not None and draft_length:
            inside = np.arange(draft_length) < drafts.lengths[:, None]
            self._survival[view.rows, :draft_length] = np.where(inside, drafts.confidence, 0.0).cumprod(axis=1)
        if not self._stage.has_observers and not self._stage.needs_trim(batch_size, draft_length, plan):
            return drafts.lengths
        self._profile.matches = self._profile.trajectories.matches[view.entries]
        draft, batch = _tensors(drafts, view, self._sources), _batch(view, view.lengths)
        with torch.inference_mode():
            self._trimmed = self._stage.cut(batch, draft, plan)
        return np.asarray(self._trimmed.lengths.numpy().astype(np.int64))

    def observe(self, view: StepView, result: StepResult) -> None:
        """Report a step to the plan half, and its verdicts to the trim half if that learns."""
        launched, planner = self._plans[0], self._planner
        reports_padding = self._mode.name != "ragged"
        verified = np.full_like(result.kept, result.draft_length) if reports_padding else result.kept
        names = [str(row) for row in view.rows.tolist()]
        results = list(zip(names, verified.tolist(), result.accepted.tolist(), strict=True))
        cost = StepCost(len(names), result.tokens, view.context_tokens, result.draft_length, 0.0, view.prefill_tokens)
        timed = planner.reads_costs and result.tokens > 0
        launched = launched._replace(began=result.began, cost=cost if timed else None)
        drafts = self._report(view) if reports_padding and self._reports[0] else NO_DRAFTS
        planner.finish(launched, results, result.ended, drafts)
        if self._trimmed is not None and self._stage.has_observers:
            kept, accepted, emitted = (torch.from_numpy(column.astype(np.int32)) for column in result[:3])
            verdict = Verdict.build(self._trimmed.lengths, Outcome(kept, accepted, emitted))
            with torch.inference_mode():
                self._stage.report_verdict(_batch(view, view.lengths + result.emitted), self._trimmed, verdict)

    def _report(self, view: StepView) -> DraftReport:
        """Return what the drafter reports of the drafts that a step verifies."""
        confidence = self._profile.trajectories.confidence[view.entries, : self._mode.gamma]
        return DraftReport.of(len(view.rows), confidence.cumprod(axis=1).sum(axis=0, dtype=np.float64).tolist())

    def forget(self, request_ids: list[str]) -> None:
        """Drop the state of ended requests."""
        self._planner.forget(request_ids)


def _tensors(drafts: Drafts, view: StepView, sources: tuple[str, ...]) -> Draft:
    """Return drafts as tensors; all token ids are 0, so that none reveals whether it is right."""
    lengths = torch.from_numpy(drafts.lengths.astype(np.int32))
    inside = torch.arange(drafts.confidence.shape[1]) < lengths[:, None]
    return Draft(
        token_ids=torch.where(inside, 0, NO_TOKEN).to(torch.int32),
        lengths=lengths,
        confidence=torch.from_numpy(drafts.confidence),
        source=torch.from_numpy(drafts.source),
        base_len=torch.from_numpy(view.lengths.astype(np.int32)),
        sources=sources,
    )


def _batch(view: StepView, lengths: Array) -> EngineBatch:
    """Return the batch of rows of `lengths` [B] tokens, without their texts; each request has a slot of its own."""
    slots, count = torch.from_numpy(view.rows), view.rows.size
    return EngineBatch(
        slots=slots,
        generations=torch.zeros(count, dtype=torch.int64),
        rows=slots,
        tokens=torch.zeros(1, 1, dtype=torch.int32),
        lengths=torch.from_numpy(lengths.astype(np.int32)),
        sampled=torch.ones(count, dtype=torch.bool),
        room=torch.full((count,), PLENTY, dtype=torch.int32),
        temperature=torch.zeros(count),
        grammar=torch.zeros(count, dtype=torch.bool),
        vocab_size=1,
    )
