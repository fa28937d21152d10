"""The conformance kit for proposers that draft by lookup, which learn from what they drafted."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from specplug.interfaces import PluginContext
from specplug.lookup import layout as at
from specplug.lookup.proposer import LookupProposer
from specplug.plugins.specs import ProposerSpec
from specplug.testing.contract import ProposerContract
from specplug.types.caps import ProposerCaps
from specplug.types.step import Draft, EngineBatch


class Unlearning(LookupProposer):
    """Forgets at each step what it learnt: what it does not draft for teaches nothing, so that confidences differ.

    A mixin, before the proposer's own class.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._counts = self.steps.state.counts.clone()

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Forget between ingesting, which judges earlier drafts, and drafting."""
        self.ingest(batch)
        if limits is not None and draft is not None:
            self.propose(batch, limits, draft)

    def ingest(self, batch: EngineBatch) -> None:
        self.steps.run(batch, None, None)
        state = self.steps.state
        state.counts.copy_(self._counts)
        state.slots[:, at.HIT_RATE] = at.LEVELS // 2


def on_engine(spec: ProposerSpec, *, trees: bool) -> ProposerSpec:
    """Return a proposer as it drafts on an engine that verifies trees, or only chains."""
    assert isinstance(spec.caps, ProposerCaps)
    return replace(spec, caps=replace(spec.caps, trees=spec.caps.trees and trees))


class LookupContract(ProposerContract):
    """Two clauses let one of two proposers draft at other steps, and compare confidences: these learn nothing there."""

    proposer: type[LookupProposer] = LookupProposer

    def test_ingests_without_drafting(self) -> None:
        self.spec = self._unlearning()
        super().test_ingests_without_drafting()

    def test_starts_over_with_a_whole_text(self) -> None:
        self.spec = self._unlearning()
        super().test_starts_over_with_a_whole_text()

    def _unlearning(self) -> ProposerSpec:
        return replace(self.spec, factory=type("Unlearning", (Unlearning, self.proposer), {}))
