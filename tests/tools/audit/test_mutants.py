"""`specplug audit` on transformers passes the real thing and fails every planted mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specplug.types.verification import Uniforms
from specplug_transformers.batch import DecodeBatch
from specplug_transformers.decode import Decoder
from specplug_transformers.runner import ModelRunner
from tests.mutants import LOSSY_MUTANTS
from tests.tools.audit.toy import audited, statuses

FEW = ("-n", "3", "--concurrency", "32")
GREEDY = ("--check", "greedy", *FEW)
SAMPLED = ("--check", "sampled", *FEW)
FAST = ("--check", "greedy", "--check", "stops", *SAMPLED)


@pytest.mark.parametrize(("proposer", "checks"), [("ngram", FAST), ("drawn", SAMPLED)])
def test_the_real_thing_passes(prompts, proposer, checks):
    """Drawn letters are rarely the likeliest ones, so greedy checks would prove little of them."""
    code, report = audited(prompts, *checks, "--proposer", proposer)
    assert set(statuses(report).values()) == {"passed"}, report["findings"]
    assert code == 0
    assert report["drafts"]["accepted"] > 100
    assert report["drafts"]["rejected"] > 100


DRAWN = ("uniform draft law", "draft law at another temperature", "resampling from p")
"""Mistakes that show on drafts which are drawn from a stated distribution."""


# Padding is -1 in this engine and never emitted, so that accepting it changes one draw in a hundred.
@pytest.mark.parametrize("name", sorted(LOSSY_MUTANTS.keys() - {"dropped validity mask"}))
def test_wrong_verifiers_fail(prompts, name):
    drawn = (*SAMPLED, "--proposer", "drawn", "--samples", "600")  # 200 find one of the mistakes two times in three
    code, report = audited(prompts, *(drawn if name in DRAWN else (*FAST, "--proposer", "ngram")), "--verifier", name)
    assert code == 1
    assert "failed" in statuses(report).values(), report["findings"]


def test_lossy_verification_fails_and_its_departure_is_stated(prompts):
    lossy = ("--verifier", "threshold", "--acceptance-threshold")
    code, report = audited(prompts, *FAST, *lossy, "0.2")
    assert code == 1
    assert statuses(report)["greedy"] == statuses(report)["sampled"] == "failed"
    assert 0 < report["findings"][0]["figures"]["departure_rate"] < 1
    assert 0 < report["drafts"]["departed"] <= report["drafts"]["accepted"]
    code, report = audited(prompts, *GREEDY, *lossy, "1")
    assert code == 0
    assert report["drafts"]["departed"] == 0


def test_a_proposer_that_states_a_wrong_distribution_fails(prompts):
    _, report = audited(prompts, *SAMPLED, "--proposer", "liar")
    assert statuses(report)["sampled"] == "failed"


def test_shifted_key_values_fail(prompts, monkeypatch):
    """A verification of more than two drafts overwrites the entry before its own; the engine probes short texts."""
    forward = ModelRunner.forward

    def shifted(self: ModelRunner, rows: Any, starts: list[int], token_ids: Any, *, keep_logits: bool = True) -> Any:
        is_long = keep_logits and token_ids.shape[1] > 3 and min(starts) > 20
        return forward(self, rows, [start - is_long for start in starts], token_ids, keep_logits=keep_logits)

    monkeypatch.setattr(ModelRunner, "forward", shifted)
    _, report = audited(prompts, *GREEDY)
    assert statuses(report)["greedy"] == "failed"


def test_rows_that_are_swapped_fail(prompts, monkeypatch):
    logits_of = Decoder._target_logits

    def swapped(self: Decoder, batch: Any, draft: Any) -> torch.Tensor:
        logits = logits_of(self, batch, draft)
        return logits.flip(0) if draft.draft_length > 1 and len(logits) == 3 else logits

    monkeypatch.setattr(Decoder, "_target_logits", swapped)
    _, report = audited(prompts, *GREEDY)
    assert statuses(report)["greedy"] == "failed"
    examples = report["findings"][0]["examples"]
    assert "gap of log-probabilities" in examples[0]


SEEDED = ("--check", "seeds", "-n", "4", "--concurrency", "8")


@pytest.mark.parametrize("proposer", ["ngram", "drawn"])
def test_seeds_give_the_text_without_speculation(prompts, proposer):
    code, report = audited(prompts, *SEEDED, "--proposer", proposer)
    assert statuses(report) == {"seeds": "passed"}, report["findings"]
    assert code == 0
    assert report["findings"][0]["figures"]["differences"] == 0


def test_other_random_numbers_for_drafted_tokens_fail(prompts, monkeypatch):
    """As rejection sampling has them: lossless, and another text."""
    uniforms = DecodeBatch.uniforms

    def moved(self: DecodeBatch, draft_length: int) -> Uniforms:
        found = uniforms(self, draft_length)
        if not draft_length:
            return found
        return Uniforms((found.accept + 0.5) % 1, (found.draw + 0.5) % 1)

    monkeypatch.setattr(DecodeBatch, "uniforms", moved)
    _, report = audited(prompts, *SEEDED)
    assert statuses(report) == {"seeds": "failed"}, report["findings"]
