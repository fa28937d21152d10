"""Engine without a model: lifecycle events and steps, driven through the real pipeline.

Nothing reveals how an output continues or how long it is, see `specplug.tools.replay.slots`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch

from specplug.assembly import build_draft_stage, build_plan_stage
from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Registry, default_registry
from specplug.plugins.specs import ENGINE_DRAFTER
from specplug.settings.model import DEFAULT_SPECULATIVE_TOKENS
from specplug.settings.sources import load_settings
from specplug.steps.draft_stage import DraftStage
from specplug.tools.replay.items import Ids
from specplug.tools.replay.score import NO_DRAFT, Offer
from specplug.tools.replay.slots import PLENTY, ReplaySlots
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, StepReport
from specplug.types.request import Reference, Request, digest_of
from specplug.types.step import NO_SPECULATION, Draft, EngineBatch, StepPlan


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a replay, in the names and options of a server's settings; trees: the target verifies them.

    Attributes:
        policy: a name in the registry; None is the settings' own default.
        gamma: `num_speculative_tokens`, most draft tokens per request and step.
        references: pass the items' documents as references of their requests.
        corpus: make the documents of all items a corpus, which proposers may draft from.
        distractors: further corpora, the documents of each; see `specplug.tools.replay.items.distractor_corpora`.
        engine_rates: of a drafter of the engine's own, how often its token at each position is right if those before it
            are; see `SimulatedDrafter`.  The proposer continues its drafts, or is `ENGINE_DRAFTER`: it drafts alone.
    """

    proposer: str = "ngram"
    policy: str | None = None
    gamma: int = DEFAULT_SPECULATIVE_TOKENS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    references: bool = False
    corpus: bool = False
    distractors: Sequence[Sequence[Ids]] = field(default=(), compare=False, repr=False)
    trees: bool = False
    engine_rates: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """The name in tables."""
        names = (ENGINE_DRAFTER, self.proposer) if self.engine_tokens else (self.proposer,)
        return f"{' + '.join(names)} ({self.policy})"

    @property
    def engine_tokens(self) -> int:
        """G, the tokens of the engine's own drafter that the proposer goes on after."""
        return 0 if self.is_engine_alone else len(self.engine_rates)

    @property
    def is_engine_alone(self) -> bool:
        """True if only the engine's own drafter drafts."""
        return self.proposer == ENGINE_DRAFTER

    def as_settings(self, store: str | None = None) -> dict[str, Any]:
        """Return the setup as a layer of settings, without a deadline, on which counts must not depend."""
        named = {} if self.policy is None else {"policy": self.policy}
        proposer = "ngram" if self.is_engine_alone else self.proposer  # a stage has one, which is not asked for drafts
        own = {"proposer": proposer, "num_speculative_tokens": self.gamma, **named}
        options = {name: dict(of) for name, of in self.options.items()}
        corpora = {"store": store, "poll_seconds": 3600}
        return {**own, "faults": {"host_deadline_ms": None}, "options": options, "corpora": corpora}


class ReplayEngine:
    """Runs a proposer and a policy over requests whose output the caller knows.

    Unknown plug-ins and wrong options of the setup raise `SettingsError` or `PluginError`.

    Args:
        slots: S, most requests at a time.
        max_length: L, the longest prompt and output.
        repeats: B, the number of identical requests that each request stands for; 1 with several slots.  The plan half
            of the policy sees B requests with the same statistics.  The trim half cuts B equal drafts to the whole
            batch's budget, and the first of them is verified.  What learns from drafts sees one row.
        store: a corpus store to draft from.

    Attributes:
        seconds: time spent in the pipeline so far.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        max_length: int,
        vocab_size: int,
        slots: int = 1,
        repeats: int = 1,
        store: str | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._registry = registry or default_registry()
        given = setup.as_settings(store)
        self._settings = load_settings(given, flags_origin="specplug replay", registry=self._registry).settings
        self._setup = setup
        self._repeats = repeats
        self._context = PluginContext(
            EngineCaps(max_draft_length=setup.gamma, trees=setup.trees, engine_tokens=setup.engine_tokens),
            vocab_size=vocab_size,
            max_slots=slots,
            max_length=max_length,
            seed=self._settings.seed,
        )
        self._faults: dict[str, Counter[str]] = {}
        self._drafts: DraftStage | None = None
        self.seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """Drop all state: rebuild proposer, policy and pipeline, as at a server's start."""
        self.close()
        context = self._context
        stage = self._drafts = build_draft_stage(self._settings, self._registry, context)
        self._plans = build_plan_stage(self._settings, self._registry, context, stage.metrics.count_fault)
        self._slots = ReplaySlots(stage, context.max_slots, context.max_length, context.vocab_size)
        self._equals = Draft.allocate(self._repeats, self._setup.gamma, trees=context.caps.trees, sources=stage.sources)
        self._steps = 0
        self._newest_plan = NO_SPECULATION

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
        return memory() if callable(memory) and not self._setup.is_engine_alone else None

    @property
    def _stage(self) -> DraftStage:
        assert self._drafts is not None, "closed"
        return self._drafts

    # -- requests ------------------------------------------------------------------------------------------------

    def start(self, slot: int, request_id: str, prompt: Ids, documents: Sequence[Ids] = ()) -> None:
        """Assign a slot to a request, as the batch's last row; its first token comes from prefill, by `extend`."""
        if prompt.size >= self._context.max_length:
            most = self._context.max_length - 1
            raise EngineError.build("the prompt does not fit", who=repr(request_id), found=prompt.size, expected=most)
        with self._timed():
            given = documents if self._setup.references else ()
            references = tuple(Reference(ids, f"document {index}") for index, ids in enumerate(given) if ids.size)
            request = Request(
                request_id,
                prompt_length=int(prompt.size),
                max_tokens=PLENTY,
                references=references,
                prompt_digest=digest_of(prompt),
            )
            self._slots.start(slot, request, prompt)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that the target emitted without a draft, in prefill."""
        self._slots.append(self._slots.at(slot), tokens)

    def finish(self, slot: int) -> None:
        """End a request."""
        with self._timed():
            self._slots.finish(self._slots.at(slot))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = perf_counter()
        yield
        self.seconds += perf_counter() - began

    # -- steps ---------------------------------------------------------------------------------------------------

    def propose(self, engine_ids: Sequence[Sequence[int]] = ()) -> list[Offer]:
        """Return the drafts of all running requests in the order in which they started.

        `engine_ids` are the drafts of the engine's own drafter, G tokens each, if the setup has one.
        """
        with self._timed():
            if not self._setup.is_engine_alone:
                return _offers(self._draft(engine_ids))
            plan = self._plan()
            rows = zip(self._slots.taken, engine_ids, strict=True)
            return [Offer(ids[: plan.draft_length_for(it.request.request_id)]) for it, ids in rows]

    def draft(self) -> Draft:
        """Return the drafts of all running requests as tensors on the CPU, valid until the next step."""
        with self._timed():
            return self._draft()

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Append the target's tokens and report the outcome of `offers`, one per row of the last `propose`.

        If an output ends inside an accepted draft, fewer than `accepted + 1` tokens are emitted; draft tokens after the
        end are then undecided.
        """
        with self._timed():
            for occupant, offer, count, tokens in zip(self._slots.taken, offers, accepted, emitted, strict=True):
                self._slots.append(occupant, tokens)
                drafted = len(offer.token_ids)
                occupant.tried = drafted if len(tokens) > count or offer.parents is not None else count
                occupant.emitted = len(tokens)
                occupant.verified += drafted
                occupant.accepted += count
                occupant.rejected += count < occupant.tried
            if self._stage.has_observers:
                batch = self._slots.batch(self._slots.taken, resets=False)
                self._stage.observe(batch, self._slots.outcome(self._slots.taken, accepted))
            if self._plans.learns:  # without a cost, which a replay cannot measure
                verified = [occupant.tried for occupant in self._slots.taken]
                fates = [*zip(verified, accepted, strict=True)] * self._repeats
                length = self._newest_plan.draft_length
                self._plans.observe(StepReport.build(self._steps, length, len(fates), fates))
            self._steps += 1

    @torch.inference_mode()
    def _draft(self, engine_ids: Sequence[Sequence[int]] = ()) -> Draft:
        stage = self._stage
        plan = self._plan()
        rows = self._slots.taken
        length = plan.draft_length
        is_alone = self._repeats == 1
        batch = self._slots.batch(rows, engine_ids)
        caps = [plan.draft_length_for(occupant.request.request_id) for occupant in rows] if plan.caps else None
        draft = stage.propose(batch, length, None if caps is None else torch.tensor(caps, dtype=torch.int32))
        if is_alone:
            draft = stage.cut(batch, draft, plan)
        elif stage.needs_trim(self._repeats, length, plan):  # a row that stands for others is cut among their drafts
            draft = self._cut_among_equals(batch, draft, plan)
        if stage.has_observers:
            stage.in_flight.put(batch, draft, len(rows))
        return draft

    def _cut_among_equals(self, batch: EngineBatch, draft: Draft, plan: StepPlan) -> Draft:
        """Return what the policy keeps of one row's draft [1, N] among B equal ones, under the whole batch's plan."""
        rows = self._equals.view(self._repeats, draft.draft_length)
        if draft.parents is None and rows.parents is not None:
            rows = replace(rows, parents=None)
        rows.copy_(draft)
        whole = replace(batch, sampled=torch.ones(self._repeats, dtype=torch.bool))  # all that is read of it
        return self._stage.trim_by_policy(whole, rows, plan).view(1, draft.draft_length)

    def _plan(self) -> StepPlan:
        figures = tuple([occupant.stats() for occupant in self._slots.taken]) * self._repeats
        stats = HostStats(self._steps, figures, last_plan=self._newest_plan)
        self._newest_plan = self._plans.plan(stats)
        return self._newest_plan


def _offers(draft: Draft) -> list[Offer]:
    lengths = draft.lengths.tolist()
    if not any(lengths):
        return [NO_DRAFT] * len(lengths)
    ids = draft.token_ids.numpy()
    confidence = draft.confidence.numpy()
    parents = None if draft.parents is None else draft.parents.numpy()
    return [
        Offer(
            ids[row, :count].tolist(),
            confidence[row, :count].tolist(),
            None if parents is None else parents[row, :count].tolist(),
        )
        for row, count in enumerate(lengths)
    ]
