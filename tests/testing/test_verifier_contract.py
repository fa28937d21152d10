"""The contract for verifiers: ours satisfy it, and each clause catches verifiers that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specplug.plugins.registry import default_registry
from specplug.plugins.specs import VerifierSpec
from specplug.testing import VerifierContract
from specplug.testing.verifier_contract import CHANGES
from specplug.types.caps import Distribution, VerifierCaps
from specplug.types.verification import TargetLogits, Uniforms, Verification
from specplug.verify.reference import ReferenceVerifier
from tests.mutants import LOSSY_MUTANTS, AcceptsAlways, DroppedMask, LenientThreshold
from tests.testing.clauses import clauses

FULL = VerifierCaps(lossless=True, distributions=(Distribution.LOGITS, Distribution.PROBS))
ONE_HOT = VerifierCaps(lossless=True)
LOSSY = VerifierCaps(lossless=False)


torch.set_num_threads(1)


class TestReference(VerifierContract):
    spec = default_registry().get(VerifierSpec, "reference")


class TestOneHotOnly(VerifierContract):
    spec = replace(TestReference.spec, caps=ONE_HOT)


class TestLossy(VerifierContract):
    """A verifier that declares itself lossy passes all other tests of the contract."""

    spec = VerifierSpec(name="lenient", factory=LenientThreshold, summary="", caps=LOSSY)


class Altered(ReferenceVerifier):
    """Returns something else than the reference."""

    def verify(self, draft, target, sampling, uniforms):
        return self.altered(super().verify(draft, target, sampling, uniforms), draft)


class LongIds(Altered):
    def altered(self, found, draft):
        return Verification(found.token_ids.long(), found.num_accepted)


class Narrow(Altered):
    def altered(self, found, draft):
        return Verification(found.token_ids[:, : draft.draft_length], found.num_accepted)


class CountsTheBonus(Altered):
    def altered(self, found, draft):
        return Verification(found.token_ids, found.num_accepted + 1)


class LeavesPadding(Altered):
    def altered(self, found, draft):
        return Verification(found.token_ids.clamp(min=0), found.num_accepted)


class NeedsARow(Altered):
    def altered(self, found, draft):
        found.num_accepted.max()
        return found


class RepeatsTheFirstRow(Altered):
    def altered(self, found, draft):
        return Verification(found.token_ids[:1].expand_as(found.token_ids), found.num_accepted)


class WarmGreedy(ReferenceVerifier):
    def verify(self, draft, target, sampling, uniforms):
        warm = replace(sampling, temperature=sampling.temperature.clamp(min=0.5), all_greedy=False)
        return super().verify(draft, target, warm, uniforms)


class LastNumber(ReferenceVerifier):
    """Draws with a number of a place that may not have been reached."""

    def _draw_number(self, uniforms, num_accepted):
        return uniforms.draw[:, -1]


class NumbersOfTheNextRow(ReferenceVerifier):
    def verify(self, draft, target, sampling, uniforms):
        turned = Uniforms(uniforms.accept.roll(1, 0), uniforms.draw.roll(1, 0))
        return super().verify(draft, target, sampling, turned)


class AssumesPadding(ReferenceVerifier):
    """Takes logits for padded, whatever their starts say."""

    def verify(self, draft, target, sampling, uniforms):
        starts = torch.arange(draft.batch_size, device=draft.device) * (draft.draft_length + 1)
        return super().verify(draft, TargetLogits(target.logits, starts), sampling, uniforms)


class CleansTheDraft(ReferenceVerifier):
    def verify(self, draft, target, sampling, uniforms):
        draft.token_ids.clamp_(min=0)
        return super().verify(draft, target, sampling, uniforms)


class ReadsBack(ReferenceVerifier):
    def verify(self, draft, target, sampling, uniforms):
        cut = draft.view(draft.batch_size, int(draft.lengths.max()))
        found = super().verify(cut, target, sampling, Uniforms(uniforms.accept[:, : cut.draft_length], uniforms.draw))
        return found


class IgnoresDistributions(ReferenceVerifier):
    """Declares distributions, and judges drafts as one-hot."""

    def verify(self, draft, target, sampling, uniforms):
        return super().verify(draft.as_one_hot(), target, sampling, uniforms)


PLANTED = [
    (LongIds, "test_returns_what_engines_expect", "token_ids is .*int64"),
    (Narrow, "test_returns_what_engines_expect", "token_ids is"),
    (CountsTheBonus, "test_accepts_a_prefix_of_the_draft", "accepted"),
    (LeavesPadding, "test_accepts_a_prefix_of_the_draft", "after what is emitted; expected -1"),
    (RepeatsTheFirstRow, "test_accepts_a_prefix_of_the_draft", "expected a"),
    (NeedsARow, "test_takes_empty_drafts", "max"),
    (WarmGreedy, "test_greedy_rows_emit_the_largest_logits", "when greedy"),
    *(
        (verifier, "test_decides_the_same_for", change)
        for verifier, change in (
            (LastNumber, "other numbers after the emitted tokens"),
            (NumbersOfTheNextRow, "a row by itself"),
            (NumbersOfTheNextRow, "the rows in another order"),
            (DroppedMask, "other values in undefined memory"),
            (AssumesPadding, "flat logits"),
        )
    ),
    (CleansTheDraft, "test_changes_nothing_that_it_reads", "has changed draft.token_ids"),
    (ReadsBack, "test_reads_nothing_back", "meta"),
    (IgnoresDistributions, "test_keeps_what_the_target_would_have_drawn", "Judge drafts by their draft_"),
    (AcceptsAlways, "test_emits_the_targets_distribution", "off by .* with one-hot drafts, plain"),
    *((mutant, "test_emits_the_targets_distribution", "are off by") for mutant in LOSSY_MUTANTS.values()),
]


@pytest.mark.parametrize(("verifier", "clause", "message"), PLANTED, ids=[f"{v.__name__}-{c}" for v, c, _ in PLANTED])
def test_a_planted_verifier_is_caught(verifier, clause, message):
    arguments = (message,) if message in CHANGES else ()
    with pytest.raises(Exception, match=message):
        getattr(contract_of(verifier)(), clause)(*arguments)


def contract_of(verifier: type[ReferenceVerifier], caps: VerifierCaps = FULL) -> type[VerifierContract]:
    spec = VerifierSpec(name=verifier.__name__, factory=verifier, summary="", caps=caps)
    return type("Contract", (VerifierContract,), {"spec": spec})


def test_every_clause_has_a_planted_verifier_and_a_docstring():
    assert {clause for _, clause, _ in PLANTED} == clauses(VerifierContract)


def test_a_verifier_is_held_to_what_it_declares_alone():
    """The same verifier is right where it declares nothing: its drafts are one-hot then."""
    contract_of(IgnoresDistributions, ONE_HOT)().test_keeps_what_the_target_would_have_drawn()
