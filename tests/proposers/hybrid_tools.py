"""The proposer `hybrid` made of two recorders, in a draft stage whose clock stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import specplug.plugins.builtin
import specplug_fixed.plugin
import specplug_hybrid.plugin
from specplug.assembly import build_draft_stage
from specplug.composing import ComposedProposer
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.settings.model import Settings
from specplug.testing.batches import make_batch
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.step import Draft, Outcome, StepPlan
from specplug_hybrid.proposer import Hybrid
from tests.steps.tools import Recorder, Write, int32

DRAFT_LENGTH = 8
SLOTS = 3


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


def rows(*ids: Sequence[int], confidence: float = 0.5) -> Write:
    """Return a `write` that drafts these rows as far as the limits go."""

    def write(_batch: Any, limits: Any, draft: Draft) -> None:
        for row, (own, limit) in enumerate(zip(ids, limits.tolist(), strict=False)):
            draft.set_row(row, own[:limit], confidence)

    return write


def registry_of(recorders: Mapping[str, Recorder]) -> Registry:
    """Return a registry of these recorders, of `nested`, which is made of the model, and of `hybrid`."""

    @hookimpl
    def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
        for name, recorder in recorders.items():
            caps = replace(recorder.caps, learns=True)
            factory = lambda _context, own=recorder: own  # noqa: E731
            register(ProposerSpec(name=name, factory=factory, summary="", caps=caps))
        nested = lambda context: ComposedProposer(context, ["model"])  # noqa: E731
        register(ProposerSpec(name="nested", factory=nested, summary="", caps=ProposerCaps(learns=True)))

    parts = SimpleNamespace(specplug_register_proposers=specplug_register_proposers)
    made = Registry()
    modules = {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin, "hybrid": specplug_hybrid.plugin}
    for name, module in {**modules, "parts": parts}.items():
        made.add(module, Owner(name, "tests", "1"))
    assert not made.load_errors
    return made


class Made:
    """A draft stage of `hybrid` for three requests.

    Args:
        lookup, model: what the parts draft.
        within: the name of the part that runs the model.
        faults: settings of the guards.
        caps: of the recorder `model`.

    Attributes:
        lookup, model: the parts.
        hybrid: the proposer.
    """

    def __init__(
        self,
        lookup: Write,
        model: Write,
        *,
        within: str = "model",
        faults: Mapping[str, Any] | None = None,
        **caps: Any,
    ) -> None:
        sources = ("own", "other")
        self.lookup, self.model = Recorder(lookup, sources=sources), Recorder(model, **caps)
        options = {"hybrid": {"lookup": "lookup", "model": within}}
        chosen = {"host_deadline_ms": None, "max_consecutive": 100, **(faults or {})}
        settings = Settings(proposer="hybrid", policy="fixed", faults=chosen, options=options)
        context = PluginContext(EngineCaps(DRAFT_LENGTH), vocab_size=16, max_slots=SLOTS, max_length=256)
        self.stage = build_draft_stage(settings, registry_of({"lookup": self.lookup, "model": self.model}), context)
        self.hybrid: Hybrid = self.stage.proposers["hybrid"]
        self.length = 2
        self.generation = 0

    def draft(self, draft_length: int = DRAFT_LENGTH) -> Draft:
        """Draft after one more token of each request."""
        self.length += 1
        self.batch = make_batch([range(self.length)] * SLOTS, vocab_size=512, generations=[self.generation] * SLOTS)
        draft = self.stage.propose(self.batch, draft_length)
        return self.stage.trim(self.batch, draft, StepPlan(draft_length))

    def verify(self, accepted: Sequence[int], verified: int = DRAFT_LENGTH) -> None:
        counts = int32(accepted)
        after = replace(self.batch, lengths=self.batch.lengths + counts + 1)
        self.stage.observe(after, Outcome(int32([verified] * SLOTS), counts, counts + 1))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return proposed and accepted tokens by source."""
        return {name: (it.proposed, it.accepted) for name, it in self.stage.metrics.snapshot().by_source.items()}


def ids(draft: Draft) -> list[list[int]]:
    return [row[:length] for row, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]
