"""Engine without a model: lifecycle events and steps, driven through the real pipeline.

Nothing reveals how an output continues or how long it is, see `specplug.replay.slots`.

A lag of k steps delays two things, as in real engines.  The plan of a step was made k steps earlier, from the
statistics of that time (a scheduler that runs ahead of its workers).  And `observe` reports on the step k steps earlier
(feedback that crosses processes).  The drafts themselves always follow the newest text, which engines pass on inside
the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage, build_plan_stage
from specplug.errors import EngineError
from specplug.interfaces import PluginContext, Trimmer
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import Registry, default_registry
from specplug.plugins.specs import PluginSpec, PolicySpec, ProposerSpec, trimming
from specplug.replay.corpora import Corpora, hand_over
from specplug.replay.fast_path import FastPathStage, can_stand_in
from specplug.replay.items import Ids
from specplug.replay.late import EarlyPlans, LateTrimmer, LateVerdicts
from specplug.replay.loop import Offer
from specplug.replay.repeated_batch import RepeatedTrimmer
from specplug.replay.setup import Setup
from specplug.replay.slots import PLENTY, Occupant, ReplaySlots
from specplug.settings.sources import load_settings
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, HostStats, StepPlan, StepReport
from specplug.types.request import Lifecycle, Reference, Request, RequestEvent

S = TypeVar("S", bound=PluginSpec)

NO_CORPORA: Corpora = MappingProxyType({})


class ReplayEngine:
    """Runs a proposer and a policy over requests whose output the caller knows.

    Args:
        setup: the configuration to run.
        slots: S, most requests at a time.
        max_length: L, the longest prompt and output.
        vocab_size: ids lie in [0, vocab_size).
        repeats: B, the number of identical requests that each request stands for, see
            `specplug.replay.repeated_batch`; 1 with several slots.
        corpora: corpora to add to a proposer that holds corpora, whenever it is built.
        registry: registry of plug-ins; by default the installed ones.

    Attributes:
        seconds: time spent in the pipeline so far.

    Raises:
        SettingsError, PluginError: the setup names unknown plug-ins, or its options are wrong.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        max_length: int,
        vocab_size: int,
        slots: int = 1,
        repeats: int = 1,
        corpora: Corpora = NO_CORPORA,
        registry: Registry | None = None,
    ) -> None:
        registry = registry or default_registry()
        self._settings = load_settings(setup.as_settings(), flags_origin="specplug replay", registry=registry).settings
        self._setup, self._repeats, self._corpora = setup, repeats, corpora
        policies = [registry.get(PolicySpec, name) for name in self._settings.policies]
        self._trimming = trimming(policies).name
        self._registry = _WrappingRegistry(registry, self._wrap)
        self._context = PluginContext(
            EngineCaps(max_draft_length=setup.gamma, trees=setup.trees),
            vocab_size=vocab_size,
            max_slots=slots,
            max_length=max_length,
            seed=self._settings.seed,
        )
        self._slots = ReplaySlots(slots, max_length, vocab_size)
        self._faults: dict[str, Counter[str]] = {}
        self._trimmer: RepeatedTrimmer | None = None
        self._drafts: DraftStage | FastPathStage | None = None
        self.seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """Drop all state: rebuild proposer, policy and pipeline, as at a server's start."""
        self.close()
        self._slots.clear()
        self._steps = 0
        self._early = EarlyPlans(self._setup.lag)
        self._plan_made = NO_SPECULATION
        stage = build_draft_stage(self._settings, self._registry, self._context)
        uses_fast_path = self._setup.fast_path and can_stand_in(self._settings)
        self._drafts = FastPathStage(stage, self._context.max_slots) if uses_fast_path else stage
        self._plans = build_plan_stage(self._settings, self._registry, self._context, self._drafts.metrics.fault)
        self.add_corpora(self._corpora)

    def add_corpora(self, corpora: Corpora) -> None:
        """Add corpora to a proposer that holds corpora; others ignore them.  The next `reset` drops them."""
        hand_over(self._stage.proposers, corpora)

    def close(self) -> None:
        """Release the proposer; its faults stay counted."""
        if self._drafts is not None:
            self._drafts.close()
            for name, kinds in self._drafts.metrics.snapshot().faults.items():
                self._faults.setdefault(name, Counter()).update(kinds)
        self._drafts = None

    @property
    def faults(self) -> dict[str, dict[str, int]]:
        """Return the faults up to the last `reset` or `close`, by plug-in and kind."""
        return {name: dict(kinds) for name, kinds in self._faults.items()}

    def memory(self) -> int | None:
        """Return the bytes that the default proposer reports to hold, if it has a `memory()`."""
        memory = getattr(next(iter(self._stage.proposers.values())), "memory", None)
        return memory() if callable(memory) else None

    @property
    def _stage(self) -> DraftStage | FastPathStage:
        assert self._drafts is not None, "closed"
        return self._drafts

    # -- requests ------------------------------------------------------------------------------------------------

    def start(self, slot: int, request_id: str, prompt: Ids, documents: Sequence[Ids] = ()) -> None:
        """Assign a slot to a request, as the batch's last row; its first token comes from prefill, by `extend`."""
        began = perf_counter()
        if prompt.size >= self._context.max_length:
            raise EngineError.build(
                "the prompt does not fit",
                who=repr(request_id),
                found=prompt.size,
                expected=self._context.max_length - 1,
            )
        given = documents if self._setup.references else ()
        references = tuple(Reference(ids, f"document {index}") for index, ids in enumerate(given) if ids.size)
        request = Request(request_id, prompt_length=int(prompt.size), max_tokens=PLENTY, references=references)
        occupant = self._slots.take(slot, request)
        self._notify(Lifecycle.STARTED, occupant)
        self._slots.append(occupant, prompt)
        self.seconds += perf_counter() - began

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that the target emitted without a draft, in prefill."""
        self._slots.append(self._slots.at(slot), tokens)

    def finish(self, slot: int) -> None:
        """End a request.  The proposer sees its last tokens first, as in engines that draft after every step."""
        began = perf_counter()
        occupant = self._slots.at(slot)
        self._stage.ingest(self._slots.alone(occupant))
        self._notify(Lifecycle.FINISHED, occupant, visible=occupant.length)
        self._slots.leave(occupant)
        self.seconds += perf_counter() - began

    # -- steps ---------------------------------------------------------------------------------------------------

    def propose(self, most: int | None = None) -> list[Offer]:
        """Return the drafts of all running requests in the order in which they started.

        `most` limits the draft tokens per request further than the plan does.
        """
        began = perf_counter()
        offers = _offers(self._draft(most))
        self.seconds += perf_counter() - began
        return offers

    def draft(self) -> Draft:
        """Return the drafts of all running requests, on the CPU, in the order in which they started."""
        began = perf_counter()
        draft = self._draft(None)
        self.seconds += perf_counter() - began
        return draft

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Append the target's tokens and report the outcome of `offers`, one per row of the last `propose`.

        If an output ends inside an accepted draft, fewer than `accepted + 1` tokens are emitted; draft tokens after the
        end are then undecided.
        """
        began = perf_counter()
        verified = []
        for occupant, offer, count, tokens in zip(self._slots.taken, offers, accepted, emitted, strict=True):
            self._slots.append(occupant, tokens)
            drafted = len(offer.token_ids)
            occupant.verified += drafted
            occupant.accepted += count
            verified.append(drafted if len(tokens) > count or offer.parents is not None else count)
            occupant.rejected += count < verified[-1]
        view = self._slots.view()
        outcome = view.outcome(verified, accepted, [len(tokens) for tokens in emitted])
        self._stage.observe(view.batch(()), outcome)
        if self._plans.learns:
            self._plans.observe(self._report(verified, accepted))
        self._steps += 1
        self.seconds += perf_counter() - began

    def _draft(self, most: int | None) -> Draft:
        """Plan, propose and trim; `most` limits the draft tokens per request further than the plan does."""
        plan = self._plan()
        batch = self._slots.view().batch(self._slots.pop_resets(self._slots.taken))
        draft = self._stage.propose(batch, plan.draft_length, self._caps(plan, most))
        if self._trimmer is None:
            return self._stage.trim(batch, draft, plan)
        return self._trimmer.trim_repeated(self._stage, batch, draft, plan)

    def _plan(self) -> StepPlan:
        figures = tuple([occupant.stats() for occupant in self._slots.taken]) * self._repeats
        stats = HostStats(self._steps, figures, last_plan=self._plan_made)
        self._plan_made = self._early.exchange(self._plans.plan(stats))
        return self._plan_made

    def _report(self, verified: Sequence[int], accepted: Sequence[int]) -> StepReport:
        """Build the report of the current step for the plan half, without a cost, which a replay cannot measure."""
        fates = [*zip(verified, accepted, strict=True)] * self._repeats
        number = max(0, self._steps - self._setup.lag)
        return StepReport.build(number, self._plan_made.draft_length, len(fates), fates)

    def _caps(self, plan: StepPlan, most: int | None) -> Tensor | None:
        """Return the caps of single rows, [B] int32, or None if there are none."""
        if not plan.caps and (most is None or most >= plan.draft_length):
            return None
        caps = [plan.draft_length_for(occupant.request.request_id) for occupant in self._slots.taken]
        return torch.tensor(caps, dtype=torch.int32).clamp_(max=plan.draft_length if most is None else most)

    def _notify(self, kind: Lifecycle, occupant: Occupant, visible: int | None = None) -> None:
        self._stage.on_event(RequestEvent(kind, occupant.request, occupant.slot, occupant.generation, visible))

    def _wrap(self, spec: PluginSpec) -> PluginSpec:
        """Return a plug-in's spec with the wrappers that a replay adds."""
        if isinstance(spec, PolicySpec) and spec.name == self._trimming and (self._repeats > 1 or self._setup.lag):
            return replace(spec, trimmer=lambda context: self._wrapped(spec.build_trimmer(context)))
        if isinstance(spec, ProposerSpec) and self._setup.lag and spec.caps_for("cpu").learns:
            return replace(spec, factory=lambda context: LateVerdicts(spec.build(context), self._setup.lag))
        return spec

    def _wrapped(self, trimmer: Trimmer) -> Trimmer:
        if self._setup.lag:
            trimmer = LateTrimmer(trimmer, self._setup.lag)
        if self._repeats > 1:
            trimmer = self._trimmer = RepeatedTrimmer(trimmer, self._repeats, self._setup.gamma, self._setup.trees)
        return trimmer


class _WrappingRegistry(Registry):
    """A registry that wraps the specs that it returns."""

    def __init__(self, inner: Registry, wrap: Callable[[PluginSpec], PluginSpec]) -> None:
        super().__init__()
        self._inner, self._wrap_spec = inner, wrap

    def get(self, spec_type: type[S], name: str) -> S:
        wrapped = self._wrap_spec(self._inner.get(spec_type, name))
        assert isinstance(wrapped, spec_type)
        return wrapped


def _offers(draft: Draft) -> list[Offer]:
    """Read a draft on the CPU."""
    lengths = draft.lengths.tolist()
    if not any(lengths):
        return [NOTHING] * len(lengths)
    ids, confidence = draft.token_ids.numpy(), draft.confidence.numpy()
    parents = None if draft.parents is None else draft.parents.numpy()
    return [
        Offer(
            ids[row, :count].tolist(),
            confidence[row, :count].tolist(),
            None if parents is None else parents[row, :count].tolist(),
        )
        for row, count in enumerate(lengths)
    ]


NOTHING = Offer(())
