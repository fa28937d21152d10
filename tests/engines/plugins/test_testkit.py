"""The plug-ins of the engine tests: the sound ones keep the contract, the others do what they are there to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specplug_testkit import plugin
from specplug_testkit.plugin import PROPOSERS, spec_of

from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec, ProposerSpec
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.testing.equality import g_test
from specplug.testing.policy_contract import PolicyContract
from specplug.testing.wrappers import StagedProposer
from tests.verify.full_probs import full_probs

LOOP = [1, 2, 3, 1, 2, 3, 1]


def with_testkit() -> Registry:
    registry = Registry.discover()
    if "spliced" not in registry.entries(ProposerSpec):  # else it is installed
        registry.add(plugin, Owner("testkit", "tests", "0"))
    return registry


class TestBigram(ProposerContract):
    spec = spec_of("bigram")


class TestTinyModel(ProposerContract):
    spec = spec_of("tiny-model")


class TestLearner(PolicyContract):
    spec = PolicySpec(
        name="learner",
        factory="specplug_testkit.policies:LearningPlanner",
        trimmer="specplug_testkit.policies:LearningTrimmer",
        summary="",
    )


class TestSpliced(ProposerContract):
    spec = spec_of("spliced")
    registry = with_testkit()
    options = {"parts": ["ngram-reference", "bigram"]}  # noqa: RUF012


def test_the_entry_points_lead_to_them(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    registry = Registry.discover()
    assert not [error for error in registry.load_errors if error.owner.plugin == "testkit"]
    assert set(PROPOSERS) <= set(registry.entries(ProposerSpec))
    assert {"ladder", "learner", "listener"} <= set(registry.entries(PolicySpec))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("name", ["uniform", "uniform-probs"])
def test_drawn_tokens_follow_the_stated_distribution(name, temperature):
    rows = 400
    vocab = 6
    options = {"spread": 1.0, "tokens": [0, 1, 2, 4]}
    with Driver(spec_of(name), options, vocab_size=vocab, max_slots=rows) as driver:
        for number in range(rows):
            driver.start(f"request {number}", [1, 2, 3])
        batch = driver.batch()
        batch = replace(batch, temperature=torch.full_like(batch.temperature, temperature))
        draft = driver.run(batch, 4, torch.full_like(batch.lengths, 4))
    assert (draft.lengths == 4).all()
    counts = torch.bincount(draft.token_ids.flatten(), minlength=vocab).double()
    assert not counts[[3, 5]].any()
    assert draft.draft_vocab is not None
    distribution = full_probs(draft, batch.temperature, vocab)[0, 0]
    assert g_test(counts, distribution) > 1e-4


@pytest.mark.parametrize("name", ["raises", "raises-device", "garbage", "garbage-device"])
def test_broken_proposers_are_contained(name, caplog):
    with Driver(spec_of(name), vocab_size=16) as driver:
        driver.proposer = StagedProposer(driver.proposer, driver.spec, driver.context)
        driver.start("request", LOOP)
        for _ in range(12):
            draft = driver.step(draft_length=4).draft
            inside = draft.mask()
            assert ((draft.token_ids[inside] >= 0) & (draft.token_ids[inside] < 16)).all()
            assert (draft.lengths <= 4).all()
    if name != "garbage-device":  # a device's values cannot be looked at, only mended
        assert f"{name}: " in caplog.text
