"""An engine without a model: seats, the token table, lifecycle events, and the real pipeline around them.

What the target has not emitted yet is poisoned: a proposer that reads past its context gains nothing.  Nothing tells
how long an output is either: every request has room for plenty.

With a lag of k steps, two things are late, as they are at engines' seams.  The plan that shapes a step was made k
steps before, from the figures of then (a scheduler that runs ahead of its workers).  And what proposers are told by
`observe` is about the step k steps before (feedback that crosses processes).  The drafts themselves always follow the
newest text: engines hand that over inside the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage, build_plan_stage
from specplug.errors import EngineError
from specplug.interfaces import PluginContext, Trimmer
from specplug.pipeline.stages import DraftStage
from specplug.registry import Registry, default_registry
from specplug.replay.late import EarlyPlans, LateVerdicts
from specplug.replay.lean import LeanStage
from specplug.replay.loop import Offer
from specplug.replay.setup import Setup
from specplug.replay.tokenizers import Ids
from specplug.replay.told import RepeatedTrimmer
from specplug.settings.sources import load_settings
from specplug.specs import PluginSpec, PolicySpec, ProposerSpec
from specplug.types.batch import BatchView, Residency
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import HostStats, RequestStats, StepPlan
from specplug.types.request import Lifecycle, Reference, Request, RequestEvent
from specplug.types.verdict import Outcome

POISON = 1_000_000_007
"""What stands where the token table is undefined: no vocabulary has such an id, and an int32 holds it."""

PLENTY = 1 << 20
"""Room that never binds, so that nothing tells where an output ends."""

S = TypeVar("S", bound=PluginSpec)


class _Seat:
    """A running request: its place, and its figures so far."""

    __slots__ = ("accepted", "generation", "length", "request", "slot", "verified")

    def __init__(self, slot: int, generation: int, request: Request) -> None:
        self.slot, self.generation, self.request = slot, generation, request
        self.length = self.verified = self.accepted = 0

    def stats(self) -> RequestStats:
        return RequestStats(self.request.request_id, self.length, PLENTY, None, self.verified, self.accepted)


class ReplayEngine:
    """Runs a proposer and a policy over requests whose output somebody else knows.

    Args:
        setup: what runs.
        seats: S, most requests at a time.
        max_length: L, the longest prompt and output.
        vocab_size: ids lie in [0, vocab_size).
        told: B, the identical requests that a single one stands for (see `specplug.replay.told`); with several seats 1.
        registry: of plug-ins; the installed ones by default.

    Attributes:
        seconds: time spent in the pipeline so far.

    Raises:
        SettingsError, PluginError: the setup names what is not there, or its options are wrong.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        max_length: int,
        vocab_size: int,
        seats: int = 1,
        told: int = 1,
        registry: Registry | None = None,
    ) -> None:
        registry = registry or default_registry()
        self._settings = load_settings(setup.as_settings(), flags_origin="specplug replay", registry=registry).settings
        self._setup, self._told = setup, told
        self._registry = _Dressed(registry, self._dress)
        self._context = PluginContext(
            EngineCaps(max_width=setup.gamma, trees=setup.trees, decision_lag=setup.lag),
            vocab_size=vocab_size,
            max_slots=seats,
            max_length=max_length,
            seed=self._settings.seed,
        )
        self._table = torch.full((seats, max_length), POISON, dtype=torch.int32)
        self._texts = self._table.numpy()
        self._generations = [0] * seats
        self._faults: dict[str, Counter[str]] = {}
        self._trimmer: RepeatedTrimmer | None = None
        self._drafts: DraftStage | None = None
        self.seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget everything: proposer, policy and pipeline are built anew, as at a server's start."""
        self.close()
        self._seats: list[_Seat] = []
        self._view: _View | None = None
        self._resets: list[int] = []
        self._steps = 0
        self._early = EarlyPlans(self._setup.lag)
        stage = build_draft_stage(self._settings, self._registry, self._context)
        self._drafts = (LeanStage.around(stage) if self._setup.lean else None) or stage
        self._plans = build_plan_stage(self._settings, self._registry, self._context, self._drafts.metrics.fault)

    def close(self) -> None:
        """Release the proposer; its faults stay counted."""
        if self._drafts is not None:
            self._drafts.close()
            for name, kinds in self._drafts.metrics.snapshot().faults.items():
                self._faults.setdefault(name, Counter()).update(kinds)
        self._drafts = None

    @property
    def faults(self) -> dict[str, dict[str, int]]:
        """What plug-ins did wrong until the last `reset` or `close`, by plug-in and kind."""
        return {name: dict(kinds) for name, kinds in self._faults.items()}

    def memory(self) -> int | None:
        """Return the bytes that the default proposer says it holds, if it has a `memory()`."""
        memory = getattr(next(iter(self._stage.proposers.values())), "memory", None)
        return memory() if callable(memory) else None

    @property
    def _stage(self) -> DraftStage:
        assert self._drafts is not None, "closed"
        return self._drafts

    # -- requests ------------------------------------------------------------------------------------------------

    def start(self, slot: int, request_id: str, prompt: Ids, documents: Sequence[Ids] = ()) -> None:
        """Seat a request; its first token comes from prefill, by `extend`.  Its row is the last of the batch."""
        began = perf_counter()
        if prompt.size >= self._context.max_length:
            raise EngineError.build(
                "the prompt does not fit",
                who=repr(request_id),
                found=prompt.size,
                expected=self._context.max_length - 1,
            )
        self._generations[slot] += 1
        given = documents if self._setup.references else ()
        references = tuple(Reference(ids, f"document {index}") for index, ids in enumerate(given) if ids.size)
        request = Request(request_id, prompt_length=int(prompt.size), max_tokens=PLENTY, references=references)
        seat = _Seat(slot, self._generations[slot], request)
        self._texts[slot].fill(POISON)
        self._seats.append(seat)
        self._view = None
        self._resets.append(slot)
        self._tell(Lifecycle.STARTED, seat)
        self._append(seat, prompt)
        self.seconds += perf_counter() - began

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that the target emitted without a draft: prefill's."""
        self._append(self._seat(slot), tokens)

    def finish(self, slot: int) -> None:
        """End a request.  The proposer sees its last tokens first, as it does where engines draft behind every step."""
        began = perf_counter()
        seat = self._seat(slot)
        self._stage.propose(_View(self._table, self._context.vocab_size, [seat]).batch(self._take_resets([seat])), 0)
        self._tell(Lifecycle.FINISHED, seat, visible=seat.length)
        self._seats.remove(seat)
        self._view = None
        self.seconds += perf_counter() - began

    # -- steps ---------------------------------------------------------------------------------------------------

    def propose(self, most: int | None = None) -> list[Offer]:
        """Plan, propose and trim for all running requests; return what is to be verified, in the order they came in.

        `most` bounds the draft tokens per request below what the plan says.
        """
        began = perf_counter()
        plan = self._plan()
        view = self._present()
        batch = view.batch(self._take_resets(self._seats))
        draft = self._stage.propose(batch, plan.width, self._caps(plan, most))
        if self._trimmer is None:
            draft = self._stage.trim(batch, draft, plan.token_budget)
        else:
            draft = self._trimmer.trim_told(self._stage, batch, draft, plan.token_budget)
        offers = _offers(draft)
        self.seconds += perf_counter() - began
        return offers

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Append what the target said, and report what became of `offers`, row by row of the last `propose`.

        Where an output ended inside an accepted draft, fewer tokens were emitted than accepted and one more: what was
        drafted behind the end is then not decided.
        """
        began = perf_counter()
        verified = []
        for seat, offer, count, tokens in zip(self._seats, offers, accepted, emitted, strict=True):
            self._append(seat, tokens)
            drafted = len(offer.token_ids)
            seat.verified += drafted
            seat.accepted += count
            verified.append(drafted if len(tokens) > count or offer.parents is not None else count)
        view = self._present()
        outcome = view.outcome(verified, accepted, [len(tokens) for tokens in emitted])
        self._stage.observe(view.batch(()), outcome)
        self._steps += 1
        self.seconds += perf_counter() - began

    def _plan(self) -> StepPlan:
        figures = tuple([seat.stats() for seat in self._seats]) * self._told
        return self._early.exchange(self._plans.plan(HostStats(self._steps, figures)))

    def _caps(self, plan: StepPlan, most: int | None) -> Tensor | None:
        """Return what bounds single rows, [B] int32; None where nothing does."""
        if not plan.caps and (most is None or most >= plan.width):
            return None
        caps = [plan.width_for(seat.request.request_id) for seat in self._seats]
        return torch.tensor(caps, dtype=torch.int32).clamp_(max=plan.width if most is None else most)

    def _present(self) -> _View:
        if self._view is None:
            self._view = _View(self._table, self._context.vocab_size, self._seats)
        return self._view.update()

    def _seat(self, slot: int) -> _Seat:
        return next(seat for seat in self._seats if seat.slot == slot)

    def _append(self, seat: _Seat, tokens: Sequence[int] | Ids) -> None:
        stop = seat.length + len(tokens)
        if stop > self._context.max_length:
            raise EngineError.build(
                "the text does not fit",
                who=repr(seat.request.request_id),
                found=f"{stop} tokens",
                expected=f"at most {self._context.max_length}",
            )
        self._texts[seat.slot, seat.length : stop] = tokens
        seat.length = stop

    def _take_resets(self, seats: Sequence[_Seat]) -> tuple[int, ...]:
        if not self._resets:
            return ()
        here = {seat.slot for seat in seats}
        taken = tuple(sorted(here.intersection(self._resets)))
        self._resets = [slot for slot in self._resets if slot not in here]
        return taken

    def _tell(self, kind: Lifecycle, seat: _Seat, visible: int | None = None) -> None:
        self._stage.on_event(RequestEvent(kind, seat.request, seat.slot, seat.generation, visible))

    def _dress(self, spec: PluginSpec) -> PluginSpec:
        """Return a plug-in's registration with what replay puts around it."""
        if isinstance(spec, PolicySpec) and self._told > 1:
            return replace(spec, trimmer=lambda context: self._repeated(spec.build_trimmer(context)))
        if isinstance(spec, ProposerSpec) and self._setup.lag and spec.caps.learns:
            return replace(spec, factory=lambda context: LateVerdicts(spec.build(context), self._setup.lag))
        return spec

    def _repeated(self, trimmer: Trimmer) -> RepeatedTrimmer:
        self._trimmer = RepeatedTrimmer(trimmer, self._told, self._setup.gamma, self._setup.trees)
        return self._trimmer


class _Dressed(Registry):
    """A registry that changes what it hands out."""

    def __init__(self, inner: Registry, dress: Callable[[PluginSpec], PluginSpec]) -> None:
        super().__init__()
        self._inner, self._dress_up = inner, dress

    def get(self, spec_type: type[S], name: str) -> S:
        dressed = self._dress_up(self._inner.get(spec_type, name))
        assert isinstance(dressed, spec_type)
        return dressed


class _View:
    """The batch of some seats; tensors are made once, and what changes is written through numpy, which is cheaper."""

    def __init__(self, table: Tensor, vocab_size: int, seats: Sequence[_Seat]) -> None:
        self._seats = list(seats)
        count = len(self._seats)
        slots = torch.tensor([seat.slot for seat in seats], dtype=torch.int64)
        changing = torch.zeros(4, count, dtype=torch.int32)
        self._numbers = changing.numpy()
        self._outcome = Outcome(verified=changing[1], accepted=changing[2], emitted=changing[3])
        self._batch = BatchView(
            slots=slots,
            generations=torch.tensor([seat.generation for seat in seats], dtype=torch.int64),
            rows=slots,
            tokens=table,
            lengths=changing[0],
            num_new=torch.zeros(count, dtype=torch.int32),  # counted by the pipeline
            sampled=torch.ones(count, dtype=torch.bool),
            room=torch.full((count,), PLENTY, dtype=torch.int32),
            temperature=torch.zeros(count, dtype=torch.float32),
            grammar=torch.zeros(count, dtype=torch.bool),
            vocab_size=vocab_size,
            residency=Residency.HOST,
            request_ids=tuple(seat.request.request_id for seat in seats),
            requests=tuple(seat.request for seat in seats),
        )
        self.update()

    def update(self) -> _View:
        """Bring the lengths up to date."""
        self._numbers[0] = [seat.length for seat in self._seats]
        return self

    def batch(self, reset_slots: tuple[int, ...]) -> BatchView:
        return replace(self._batch, reset_slots=reset_slots) if reset_slots else self._batch

    def outcome(self, verified: Sequence[int], accepted: Sequence[int], emitted: Sequence[int]) -> Outcome:
        numbers = self._numbers
        numbers[1], numbers[2], numbers[3] = verified, accepted, emitted
        return self._outcome


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
