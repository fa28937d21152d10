"""The proposer `hybrid` keeps the contract, and its gains are what was observed."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import specplug_hybrid.plugin
import specplug_ngram.plugin
from specplug.host import HostDraft, HostProposer
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.testing.contract import ProposerContract
from specplug.types.caps import ProposerCaps
from specplug.types.request import Request
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.proposer import CrossTok
from specplug_hybrid import proposer
from specplug_hybrid.proposer import Gains
from tests.proposers import crosstok_tools
from tests.proposers.hybrid_tools import Clock
from tests.proposers.lookup_contract import Unlearning


class CountsDown(HostProposer):
    """A stand-in for a model, whose drafts depend on the last token only."""

    sources = ("odd", "even")

    def draft(self, tokens: np.ndarray, limit: int, request: Request | None) -> HostDraft:
        ids = (int(tokens[-1]) - 1 - np.arange(limit)) % 64
        return HostDraft(ids, 0.75, (ids + 1) % 2)


def small_draft(context: PluginContext) -> CrossTok:
    """Build crosstok with a shipped draft model of another tokenizer."""
    options = CrossTokSettings.model_validate(crosstok_tools.options(crosstok_tools.OTHER))
    return crosstok_tools.build(replace(context, options=options))


@hookimpl
def specplug_register_proposers(register) -> None:
    down, inline = ProposerCaps(needs_host=True), ProposerCaps(needs_host=True, inline=True, incremental=True)
    options = "specplug.lookup.options:LookupSettings"
    register(ProposerSpec(name="unlearning", factory=Unlearning, summary="", options=options, caps=inline))
    register(ProposerSpec(name="counts-down", factory=CountsDown, summary="", caps=down))
    model = crosstok_tools.registered().caps
    register(ProposerSpec(name="small-draft", factory=small_draft, summary="", caps=model))


def registry() -> Registry:
    made = Registry()
    parts = SimpleNamespace(specplug_register_proposers=specplug_register_proposers)
    modules = {"hybrid": specplug_hybrid.plugin, "ngram": specplug_ngram.plugin, "parts": parts}
    for name, module in modules.items():
        made.add(module, Owner(name, "tests", "1"))
    assert not made.load_errors
    return made


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock by which the proposer decides, so that the model runs wherever it gains."""
    monkeypatch.setattr(proposer, "time", Clock())


class HybridContract(ProposerContract):
    """One clause lets one of two proposers draft at other steps, and compares confidences: lookup learns nothing there.

    See `tests.proposers.lookup_contract`.
    """

    registry = registry()
    spec = registry.get(ProposerSpec, "hybrid")

    def test_ingests_without_drafting(self) -> None:
        self.options = {**self.options, "lookup": "unlearning"}
        super().test_ingests_without_drafting()


class TestContract(HybridContract):
    options = MappingProxyType({"model": "counts-down"})

    def test_both_parts_draft(self) -> None:
        """Without drafts of both, the other clauses would show little."""
        with self.driver() as driver:
            found = {source for step in self.steps(driver) for row in step.by_request().values() for source in row[2]}
            names = {driver.proposer.sources[source] for source in found}
        assert names >= {"ngram/own text", "counts-down/odd", "counts-down/even"}


class TestContractWithADraftModel(HybridContract):
    options = MappingProxyType({"model": "small-draft"})
    vocab_size = crosstok_tools.VOCAB
    texts = tuple(
        crosstok_tools.encoded(text)
        for text in ("def add(first, second):\n    return first + second\n\n\ndef sub(first, second):\n    return", "x")
    )


COUNTS = st.integers(0, 8)
VERDICTS = st.lists(st.tuples(st.integers(0, 3), COUNTS), max_size=60)
SECONDS = st.floats(1e-4, 1.0)


@given(COUNTS, VERDICTS)
def test_expected_tends_to_what_was_observed(accepted: int, before: list[tuple[int, int]]) -> None:
    gains = Gains()
    for slot, count in before:
        gains.learn(slot, count)
    distances = []
    for count in (0, 100, 900):
        for _ in range(count):
            gains.learn(0, accepted)
        distances.append(abs(gains.expected([0])[0] - accepted))
    assert distances[1] < max(0.5, 0.2 * distances[0])
    assert distances[2] < 0.1


@given(VERDICTS)
def test_expected_lies_among_what_was_observed_and_the_first_guess(verdicts: list[tuple[int, int]]) -> None:
    gains = Gains()
    assert gains.expected([0, 5]).tolist() == [2.0, 2.0]
    for slot, count in verdicts:
        gains.learn(slot, count)
    seen = [2, *(count for _, count in verdicts)]
    expected = gains.expected([0, 1, 2, 3, 9])
    assert all(min(seen) - 1e-9 <= it <= max(seen) + 1e-9 for it in expected)
    assert expected[-1] == pytest.approx(np.mean(seen))  # of a slot without verdicts: what all had


def test_a_request_differs_from_what_all_have() -> None:
    gains = Gains()
    for _ in range(40):
        gains.learn(0, 8)
        gains.learn(1, 0)
    own, other, unknown = gains.expected([0, 1, 2])
    assert own > 7 > 5 > unknown > 3 > 1 > other


@given(VERDICTS)
def test_a_slot_is_forgotten(verdicts: list[tuple[int, int]]) -> None:
    gains = Gains()
    for slot, count in verdicts:
        gains.learn(slot, count)
    kept = gains.expected([1])
    gains.forget(0)
    gains.forget(77)
    assert gains.expected([0]) == gains.expected([99])
    assert gains.expected([1]) == kept


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=30), st.floats(5, 1e6))
def test_a_pause_is_no_step(steps: list[float], pause: float) -> None:
    gains = Gains()
    for seconds in steps:
        gains.time_step(seconds)
    before = gains.step_seconds
    gains.time_step(pause)
    assert gains.step_seconds == before
    gains.time_step(1.0)
    assert min(0.9, *steps) <= gains.step_seconds <= 1.1


@given(st.floats(1, 1e3), st.floats(1e-3, 1e3))
def test_steps_that_stay_longer_are_no_pauses(before: float, factor: float) -> None:
    gains = Gains()
    for _ in range(5):
        gains.time_step(before)
    for _ in range(200):
        gains.time_step(before * factor)
    assert gains.step_seconds == pytest.approx(before * factor, rel=1e-2)


@given(SECONDS, SECONDS, st.integers(1, 256), st.floats(0, 1000), st.floats(0, 1000))
def test_it_pays_if_a_second_has_more_tokens(step: float, model: float, size: int, without: float, more: float) -> None:
    gains = Gains()
    gains.time_step(step)
    gains.time_model(model)
    with_model = (size + without + more) / (step + model)
    alone = (size + without) / step
    assume(abs(with_model - alone) > 1e-9 * alone)
    assert gains.pays(size, without, more) == (with_model > alone)


@pytest.mark.parametrize("known", ["step", "model", "neither"])
def test_it_is_tried_while_a_time_is_unknown(known: str) -> None:
    gains = Gains()
    if known != "neither":
        getattr(gains, f"time_{known}")(1.0)
    assert gains.pays(8, 100.0, 0.1)
    assert not gains.pays(8, 100.0, 0.0)
