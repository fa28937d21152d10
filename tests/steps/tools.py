"""A small engine around the real draft stage, and proposers that record their calls and fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from specplug import metrics
from specplug.faults import FaultGuard
from specplug.interfaces import Proposer, Trimmer
from specplug.metrics import SpecMetrics
from specplug.plugins.specs import ProposerSpec
from specplug.steps import draft_buffers, in_flight, proposer_runner, sanitize, trim
from specplug.steps.draft_stage import DraftStage
from specplug.steps.handles import HostHandle, make_handle
from specplug.steps.trim import SurvivalTrimmer
from specplug.testing.batches import make_batch
from specplug.trace import TraceWriter
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.request import Lifecycle, Request, RequestEvent, RequestOptions
from specplug.types.step import CostPoint, Draft, EngineBatch, Outcome, StepPlan, Verdict

CPU = torch.device("cpu")
VOCAB = 64
SLOTS = 6

torch.set_num_threads(1)

Write = Callable[[EngineBatch, Tensor, Draft], None]


def count_up(batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
    """Draft last token + 1, + 2, ... as far as the limits go."""
    ends = batch.lengths.long() if batch.first is None else batch.lengths.long() - batch.first
    last = batch.tokens[batch.rows.long(), ends - 1]
    places = torch.arange(draft.draft_length)
    inside = places < limits[:, None]
    draft.token_ids.copy_(torch.where(inside, (last[:, None] + 1 + places) % batch.vocab_size, -1))
    draft.lengths.copy_(limits)
    draft.confidence.copy_(torch.where(inside, 0.5, 0.0))
    draft.source.copy_(torch.where(inside, 0, -1))


def draft_nothing(_batch: EngineBatch, _limits: Tensor, _draft: Draft) -> None:
    """Leave the draft empty."""


class Recorder(Proposer):
    """Notes every call; `fails` names the methods that raise at present.

    Attributes:
        handed: per `ingest`, the new tokens of each (slot, generation).
        texts: what all of them make, by (slot, generation).
        limits: per `propose`, the limits.
        observed: per `observe`, the batch, draft and verdict, cloned.
        calls: names of all methods called, in order.
    """

    def __init__(self, write: Write = count_up, *, sources: Sequence[str] = (), **caps: Any) -> None:
        self.write, self.caps = write, ProposerCaps(**caps)
        self.sources = tuple(sources)
        self.fails: set[str] = set()
        self.calls: list[str] = []
        self.handed: list[dict[tuple[int, int], list[int]]] = []
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.resets: list[tuple[int, ...]] = []
        self.limits: list[list[int]] = []
        self.observed: list[tuple[EngineBatch, Draft, Verdict]] = []
        self.events: list[Any] = []

    def _begins(self, name: str) -> None:
        """Wait, in proposers that hang."""

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise ZeroDivisionError(f"planted in {name}")

    def ingest(self, batch: EngineBatch) -> None:
        self._begins("ingest")
        handed = {}
        for row in range(batch.batch_size):
            key = (int(batch.slots[row]), int(batch.generations[row]))
            handed[key] = newest(batch, row)
            self.texts.setdefault(key, [])[int(batch.lengths[row] - batch.num_new[row]) :] = handed[key]
        self.handed.append(handed)
        self.resets.append(batch.reset_slots)
        self._called("ingest")

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        self._begins("propose")
        self.limits.append(limits.tolist())
        self.write(batch, limits, draft)  # also when it fails: half a draft is then in the buffer
        self._called("propose")

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.observed.append((batch, draft, verdict))
        self._called("observe")

    def on_event(self, event: Any) -> None:
        self._begins("on_event")
        self.events.append(event)
        self._called("on_event")

    def close(self) -> None:
        self._called("close")


def stage_of(
    proposers: Mapping[str, Any],
    caps: EngineCaps,
    trimmer: Trimmer,
    *,
    device: torch.device = CPU,
    vocab_size: int = VOCAB,
    max_slots: int = SLOTS,
    deadline: float | None = None,
    trace: TraceWriter | None = None,
    other_sources: Sequence[str] = (),
    **breaker: int,
) -> DraftStage:
    """Return a draft stage.

    Args:
        proposers: by name, the default first, each with its `caps`.
        other_sources: that the metrics know besides those of the proposers.
        breaker: arguments of all guards.
    """
    handles = [
        make_handle(ProposerSpec(name=name, factory=lambda _: None, summary="", caps=it.caps), it, deadline, device)
        for name, it in proposers.items()
    ]
    sources = [source for handle in handles for source in handle.sources]
    metrics = SpecMetrics([*sources, *other_sources], caps.max_draft_length, device)
    *guards, trim_guard = [FaultGuard(name, sink=metrics.count_fault, **breaker) for name in (*proposers, "trimmer")]
    return DraftStage(
        handles,
        guards,
        trimmer,
        trim_guard,
        caps=caps,
        max_slots=max_slots,
        vocab_size=vocab_size,
        device=device,
        metrics=metrics,
        trace=trace,
    )


@dataclass
class Occupant:
    """One running request."""

    request: Request
    slot: int
    generation: int
    tokens: list[int]


@dataclass
class Rig:
    """An engine with a draft stage.  Requests go by name; the rows of a batch are in the order in which they are named.

    Args:
        proposers: by name, the default first.
        deadline: of host proposers, in seconds; None waits.
        max_consecutive, cooldown_steps: of all guards.
    """

    proposers: Mapping[str, Recorder]
    caps: EngineCaps = field(default_factory=lambda: EngineCaps(4))
    trimmer: Trimmer = field(default_factory=SurvivalTrimmer)
    trace: TraceWriter | None = None
    deadline: float | None = None
    max_consecutive: int = 3
    cooldown_steps: int = 4

    def __post_init__(self) -> None:
        breaker = {"max_consecutive": self.max_consecutive, "cooldown_steps": self.cooldown_steps}
        given = {"deadline": self.deadline, "trace": self.trace, **breaker}
        self.stage = stage_of(self.proposers, self.caps, self.trimmer, **given)
        self.handles, self.metrics = [runner.handle for runner in self.stage.runners], self.stage.metrics
        self.occupants: dict[str, Occupant] = {}
        self._generations = [-1] * SLOTS

    @property
    def faults(self) -> dict[str, dict[str, int]]:
        """Return the faults that the metrics counted."""
        return {name: dict(kinds) for name, kinds in self.metrics.snapshot().faults.items()}

    def start(
        self,
        name: str,
        tokens: Sequence[int],
        *,
        slot: int | None = None,
        proposer: str | None = None,
        kind: Lifecycle = Lifecycle.STARTED,
    ) -> Occupant:
        """Give a request a slot, by default the lowest free one, in a new generation."""
        if slot is None:
            slot = min(set(range(SLOTS)) - {occupant.slot for occupant in self.occupants.values()})
        self._generations[slot] += 1
        request = Request(name, len(tokens), 1000, options=RequestOptions(proposer=proposer))
        occupant = self.occupants[name] = Occupant(request, slot, self._generations[slot], list(tokens))
        self.stage.on_event(RequestEvent(kind, request, slot, occupant.generation))
        return occupant

    def leave(self, name: str, kind: Lifecycle = Lifecycle.FINISHED) -> list[int]:
        """Free the request's slot; return its text."""
        occupant = self.occupants.pop(name)
        self.stage.on_event(RequestEvent(kind, occupant.request, occupant.slot, occupant.generation))
        return occupant.tokens

    def batch(self, names: Sequence[str] | None = None, **columns: Any) -> EngineBatch:
        """Return the batch of the named requests, by default of all; slots and rows of the table differ."""
        occupants = [self.occupants[name] for name in (self.occupants if names is None else names)]
        return make_batch(
            [occupant.tokens for occupant in occupants],
            slots=[occupant.slot for occupant in occupants],
            generations=[occupant.generation for occupant in occupants],
            rows=[(occupant.slot + 1) % SLOTS for occupant in occupants],
            table_shape=(SLOTS, 128),
            vocab_size=VOCAB,
            requests=[occupant.request for occupant in occupants],
            **columns,
        )

    def draft(
        self,
        draft_length: int = 4,
        names: Sequence[str] | None = None,
        *,
        budget: int | None = None,
        costs: tuple[CostPoint, ...] = (),
        **columns: Any,
    ) -> Draft:
        """Propose and trim."""
        batch = self.batch(names, **columns)
        plan = StepPlan(draft_length, budget, costs=costs)
        return self.stage.trim(batch, self.stage.propose(batch, draft_length), plan)

    def verify(
        self, accepted: Mapping[str, int], *, verified: int = 4, emitted: Mapping[str, Sequence[int]] | None = None
    ) -> Verdict:
        """Report a step: each named request, in that order, had so many of its `verified` tokens accepted.

        It emits one token more, 0 unless `emitted` says which.
        """
        new = {name: [0] * (count + 1) for name, count in accepted.items()} | dict(emitted or {})
        for name in accepted:
            self.occupants[name].tokens.extend(new[name])
        outcome = Outcome(
            verified=int32([verified] * len(accepted)),
            accepted=int32(accepted.values()),
            emitted=int32([len(new[name]) for name in accepted]),
        )
        return self.stage.observe(self.batch(list(accepted)), outcome)


def newest(batch: EngineBatch, row: int) -> list[int]:
    """Return a row's new tokens, wherever its entry in the table begins."""
    stop = int(batch.lengths[row]) - (0 if batch.first is None else int(batch.first[row]))
    return batch.tokens[int(batch.rows[row]), stop - int(batch.num_new[row]) : stop].tolist()


def drafts(draft: Draft) -> list[list[int]]:
    """Return the draft tokens of each row."""
    return [ids[:length] for ids, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


def int32(values: Any) -> Tensor:
    """Return host values as an int32 tensor."""
    return torch.tensor(list(values), dtype=torch.int32)


def host_handle(proposer: Recorder, deadline: float | None = None, **kwargs: Any) -> HostHandle:
    """Return a host handle of a proposer."""
    spec = ProposerSpec(name="host", factory=lambda _context: proposer, summary="", caps=proposer.caps)
    return HostHandle(spec, proposer, proposer.caps, deadline, **kwargs)


def rig_of(proposer: Recorder, **kwargs: Any) -> Rig:
    """Return a bench of one proposer, called "only"."""
    return Rig({"only": proposer}, **kwargs)


def started(rig: Rig, **texts: Sequence[int]) -> Rig:
    """Start requests by name, each with its text; return the rig."""
    for name, text in texts.items():
        rig.start(name, text)
    return rig


def rows(*ids: Sequence[int], confidence: float = 0.5) -> Write:
    """Return a `write` that drafts these rows, as many of them as the batch has."""

    def write(_batch: EngineBatch, _limits: Tensor, draft: Draft) -> None:
        for row, row_ids in enumerate(ids[: draft.batch_size]):
            draft.set_row(row, row_ids, confidence)

    return write


def planted(*_args: object) -> None:
    """Raise."""
    raise ZeroDivisionError("planted")


def work_on_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let draft stages on the CPU do what they do on other devices, where no array shares a tensor's memory."""
    for module in (in_flight, metrics, proposer_runner, draft_buffers):
        monkeypatch.setattr(module, "as_array", lambda tensor: tensor)
    for module in (draft_buffers, in_flight, metrics):
        monkeypatch.setattr(module, "library", lambda _: torch)
    monkeypatch.setattr(sanitize, "sanitize_arrays", sanitize.sanitize_tensors)
    monkeypatch.setattr(trim, "trimmed_chains", lambda draft, limits: draft.keep(trim.admitted(draft, limits)))
