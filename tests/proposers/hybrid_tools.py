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
from specplug.plugins.hooks import hookimpl
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import Settings
from specplug.testing.batches import make_batch
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.verdict import Outcome
from specplug_hybrid.proposer import Hybrid
from tests.pipeline.tools import Recorder, Write, int32

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


class Parts:
    """A registry of the recorders `lookup` and `model`, of `nested`, which is made of the model, and of `hybrid`."""

    def __init__(self, recorders: Mapping[str, Recorder]) -> None:
        self.recorders = recorders
        self.registry = Registry()
        modules = {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin, "hybrid": specplug_hybrid.plugin}
        for name, module in {**modules, "parts": SimpleNamespace(specplug_register_proposers=self._hook())}.items():
            self.registry.add(module, Owner(name, "tests", "1"))
        assert not self.registry.load_errors

    def _hook(self) -> Callable[..., None]:
        @hookimpl
        def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
            for name, recorder in self.recorders.items():
                caps = replace(recorder.caps, learns=True)
                factory = lambda _context, own=recorder: own  # noqa: E731
                register(ProposerSpec(name=name, factory=factory, summary="", caps=caps))
            nested = lambda context: ComposedProposer(context, ["model"])  # noqa: E731
            register(ProposerSpec(name="nested", factory=nested, summary="", caps=ProposerCaps(learns=True)))

        return specplug_register_proposers


class Made:
    """A draft stage of `hybrid` for three requests.

    Args:
        lookup, model: what the parts draft.
        within: the name of the part that runs the model.
        faults: settings of the guards.
        caps: of the recorder `model`.

    Attributes:
        recorders: the parts, by name.
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
        self.recorders = {"lookup": Recorder(lookup, sources=sources), "model": Recorder(model, **caps)}
        options = {"hybrid": {"lookup": "lookup", "model": within}}
        chosen = {"host_deadline_ms": None, "max_consecutive": 100, **(faults or {})}
        settings = Settings(proposer="hybrid", policy="fixed", faults=chosen, options=options)
        context = PluginContext(EngineCaps(DRAFT_LENGTH), vocab_size=16, max_slots=SLOTS, max_length=256)
        self.stage = build_draft_stage(settings, Parts(self.recorders).registry, context)
        self.hybrid: Hybrid = self.stage.proposers["hybrid"]
        self.length = 2

    @property
    def lookup(self) -> Recorder:
        return self.recorders["lookup"]

    @property
    def model(self) -> Recorder:
        return self.recorders["model"]

    def draft(self, draft_length: int = DRAFT_LENGTH) -> Draft:
        """Draft after one more token of each request."""
        self.length += 1
        self.batch = make_batch([range(self.length)] * SLOTS, vocab_size=512, generations=[0] * SLOTS)
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
