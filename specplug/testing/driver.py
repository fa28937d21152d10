"""Driver of one proposer that acts as an engine: requests start, grow, end and resume, one step at a time.

    with Driver(spec, vocab_size=64) as driver:
        driver.start("a", [1, 2, 3, 1, 2])
        step = driver.step(draft_length=4)
        print(step.by_request()["a"].token_ids)
        driver.settle(step, {"a": [3, 1, 2]})  # the target's next tokens

Whatever the contract leaves open is chosen to be inconvenient: a request's slot, its row in the token table and its row
in the batch are three different numbers, and undefined entries are poisoned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_part
from specplug.errors import ContractError
from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.registry import Registry, default_registry
from specplug.plugins.specs import PluginSpec, ProposerSpec
from specplug.settings.model import Faults, Settings
from specplug.steps.draft_buffers import checked_draft_vocab
from specplug.steps.proposer_runner import ProposerRunner
from specplug.testing.batches import PLENTY, POISON, DraftedStep, make_batch
from specplug.testing.wrappers import watch
from specplug.types.batch import Barrier
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.request import EngineEvent, EngineEventKind, Lifecycle, Reference, Request, RequestEvent, digest_of
from specplug.types.step import Draft, EngineBatch, Outcome, Verdict

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
FULL_LENGTH = -1


def context_for(spec: PluginSpec, options: Mapping[str, object], caps: EngineCaps, **fields: Any) -> PluginContext:
    """Return the context of a plug-in under test, with its own settings as arguments of its options model."""
    model = spec.options_model()
    if model is None and options:
        raise ContractError.build("takes no options", who=f"{spec.kind} {spec.name!r}", found=dict(options))
    return PluginContext(caps, options=None if model is None else model(**options), **fields)


@dataclass
class _Running:
    """One running request: its slot, its text, and how much of the text the proposer has received."""

    request: Request
    slot: int
    generation: int
    tokens: list[int]
    barriers: Sequence[tuple[int, int]]
    known: int = 0


@dataclass(eq=False)
class Driver(AbstractContextManager["Driver"]):
    """An engine's view of one proposer.  As a context manager it closes the proposer on exit.

    The attribute `proposer` may be replaced by a `StagedProposer`.

    Args:
        spec, options: the proposer, and its own settings as arguments of its options model.
        vocab_size, max_slots, max_length, max_draft_length: the engine's; the drafts of a step may be shorter.
        device: device of batches and drafts.
        rank: tensor-parallel rank in the proposer's context.
        poison: fill value of undefined entries of the token table.
        index_dtype: int32 or int64, the dtype of slots and table rows.
        change: what the proposer gets in place of each batch.
        watched: whether to raise `ContractError` if a call changes one of its read-only arguments.
        registry: registry of the parts of a composed proposer; by default the installed plug-ins.
    """

    spec: ProposerSpec
    options: Mapping[str, object] = field(default_factory=dict)
    _: KW_ONLY
    vocab_size: int
    max_slots: int = 8
    max_length: int = 256
    max_draft_length: int = 8
    device: torch.device | str = "cpu"
    rank: int = 0
    poison: int = POISON
    index_dtype: torch.dtype = torch.int64
    change: Callable[[EngineBatch], EngineBatch] = lambda batch: batch
    watched: bool = False
    registry: Registry | None = None

    def __post_init__(self) -> None:
        device = torch.device(self.device)
        self.caps = self.spec.caps_for(device.type)
        caps = EngineCaps(self.max_draft_length, trees=self.caps.trees, draft_input=self.caps.distribution)
        sizes = {"vocab_size": self.vocab_size, "max_slots": self.max_slots, "max_length": self.max_length}
        own = {"device": device, "rank": self.rank, "part": self._part}
        self.context = context_for(self.spec, self.options, caps, **sizes, **own)
        self._occupants: dict[str, _Running] = {}
        self._free = list(range(self.max_slots))
        self._generations = [-1] * self.max_slots
        self._reset_slots: set[int] = set()
        self.proposer: Proposer = self.spec.build(self.context)
        self.proposer.warmup()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the proposer."""
        self.proposer.close()

    def start(
        self,
        name: str,
        tokens: Sequence[int],
        *,
        references: Sequence[Sequence[int]] = (),
        barriers: Sequence[tuple[int, int]] = (),
        kind: Lifecycle = Lifecycle.STARTED,
        **fields: Any,
    ) -> None:
        """Give a request the most recently freed slot, in a new generation.

        `fields` are further fields of `Request`.  Without an `isolation_key` among them, each request gets its own, so
        no state may pass from one to another.
        """
        slot = self._free.pop()
        self._generations[slot] += 1
        self._reset_slots.add(slot)
        fields = {"prompt_length": len(tokens), "max_tokens": PLENTY, "isolation_key": name, **fields}
        fields.setdefault("prompt_digest", digest_of(tokens[: fields["prompt_length"]]))
        request = Request(name, references=tuple(map(Reference.of, references)), **fields)
        self._occupants[name] = occupant = _Running(request, slot, self._generations[slot], list(tokens), barriers)
        self._notify(kind, occupant)

    def leave(
        self, name: str, kind: Lifecycle | None = Lifecycle.FINISHED, *, visible: int | None = FULL_LENGTH
    ) -> None:
        """Free the request's slot; with `kind` None the proposer receives no event.

        `visible` is the number of tokens that the client saw, by default all; None if unknown.  Only the events that
        end a request carry it.
        """
        occupant = self._occupants.pop(name)
        self._free.append(occupant.slot)
        if kind is not None:
            seen = len(occupant.tokens) if visible == FULL_LENGTH else visible
            self._notify(kind, occupant, seen if kind in (Lifecycle.FINISHED, Lifecycle.ABORTED) else None)

    def announce(self, kind: EngineEventKind) -> None:
        """Send the proposer an event that concerns the whole engine."""
        self.proposer.on_event(EngineEvent(kind))

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        """Append tokens to a request's text, as if the target emitted them or the prompt's next chunk arrived."""
        self._occupants[name].tokens.extend(tokens)

    def text(self, name: str) -> list[int]:
        """Return a copy of the request's text."""
        return list(self._occupants[name].tokens)

    def batch(self, order: Sequence[str] | None = None) -> EngineBatch:
        """Return the current batch with its rows in the given order, by default the order in which requests started."""
        occupants = [self._occupants[name] for name in (self._occupants if order is None else order)]
        slots = [occupant.slot for occupant in occupants]
        context = self.context
        return make_batch(
            [occupant.tokens for occupant in occupants],
            num_new=[len(occupant.tokens) - occupant.known for occupant in occupants],
            slots=slots,
            generations=[occupant.generation for occupant in occupants],
            rows=[(slot + 2) % context.max_slots for slot in slots],
            table_shape=(context.max_slots, context.max_length),
            vocab_size=context.vocab_size,
            reset_slots=tuple(sorted(self._reset_slots.intersection(slots))),
            barriers=tuple(Barrier(row, *span) for row, it in enumerate(occupants) for span in it.barriers),
            requests=[occupant.request for occupant in occupants],
            poison=self.poison,
            index_dtype=self.index_dtype,
            device=context.device,
        )

    def resend(self, name: str) -> None:
        """Mark the request's whole text as new at its next step."""
        self._occupants[name].known = 0

    def step(
        self, draft_length: int, *, order: Sequence[str] | None = None, caps: Mapping[str, int] | None = None
    ) -> DraftedStep:
        """Let the proposer ingest the current batch and, with a draft length above 0, draft.

        `caps` limits the drafts of single requests, by name.  Requests that are not in `order` skip the step.
        """
        names = tuple(self._occupants if order is None else order)
        batch = self.batch(order)
        bounds = [(caps or {}).get(name, draft_length) for name in names]
        limits = batch.limits(draft_length, torch.tensor(bounds, dtype=torch.int32, device=batch.device))
        step = DraftedStep(names, batch, limits, self.run(batch, draft_length, limits))
        self._reset_slots.difference_update(self._occupants[name].slot for name in names)
        for name in names:
            self._occupants[name].known = len(self._occupants[name].tokens)
        return step

    def settle(self, step: DraftedStep, answers: Mapping[str, Sequence[int]]) -> Verdict:
        """Verify a step against a greedy target's next tokens, append the emitted ones, and let the proposer observe.

        A request with n accepted draft tokens emits the first n + 1 tokens of its answer.
        """
        chain = step.draft.as_chain()
        accepted = []
        emitted = []
        for name, drafted, length in zip(step.names, chain.token_ids.tolist(), chain.lengths.tolist(), strict=True):
            answer = answers[name]
            pairs = zip(drafted[:length], answer, strict=False)
            accepted.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
            emitted.append(min(accepted[-1] + 1, len(answer)))
            self.extend(name, answer[: emitted[-1]])
        int32 = partial(torch.tensor, dtype=torch.int32, device=chain.device)
        outcome = Outcome(step.draft.lengths.clone(), int32(accepted), int32(emitted))
        verdict = Verdict.build(step.draft.lengths, outcome)
        if self.caps.learns:
            batch = self.batch(step.names)
            arguments = (self.change(batch), step.draft, verdict)
            self._call("observe", *arguments, batch=batch, draft=step.draft, verdict=verdict)
        return verdict

    def run(self, batch: EngineBatch, draft_length: int, limits: Tensor) -> Draft:
        """Pass one batch to the proposer; `limits` [B] int32 are the most draft tokens of each row."""
        distribution = self.caps.distribution
        draft = Draft.allocate(
            batch.batch_size,
            draft_length,
            device=batch.device,
            trees=self.caps.trees,
            distribution=distribution,
            vocab_size=0 if distribution is Distribution.ONE_HOT else batch.vocab_size,
            draft_vocab=checked_draft_vocab(self.spec.name, self.proposer, batch.vocab_size),
            sources=self.proposer.sources or (self.spec.name,),
        )
        draft.reset(batch.lengths)
        outputs = (limits, draft) if draft_length else (None, None)
        read_only = {"batch": batch, "limits": limits, "draft.base_len": draft.base_len}
        self._call("step", self.change(batch), *outputs, **read_only)
        return draft

    def _call(self, name: str, *arguments: object, **read_only: object) -> None:
        """Call the proposer, which must not change the tensors of `read_only`."""
        action = partial(getattr(self.proposer, name), *arguments)
        if self.watched:
            watch(name, action, **read_only)
        else:
            action()

    def _part(self, name: str, *, states: bool = False) -> ProposerRunner:
        """Build a part whose faults fail the test."""
        settings = Settings(faults=Faults(host_deadline_ms=None))
        known = self.registry or default_registry()
        return build_part(name, settings, known, self.context, _refuse, (self.spec.name,), states=states)

    def _notify(self, kind: Lifecycle, occupant: _Running, visible: int | None = None) -> None:
        self.proposer.on_event(RequestEvent(kind, occupant.request, occupant.slot, occupant.generation, visible))


def _refuse(name: str, kind: str) -> None:
    raise ContractError.build("a part failed", who=f"proposer {name!r}", found=kind, expected="no faults")
