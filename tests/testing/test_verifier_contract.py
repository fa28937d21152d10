"""The contract for verifiers: ours satisfy it, and each clause catches verifiers that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specplug.plugins.registry import default_registry
from specplug.plugins.specs import VerifierSpec
from specplug.testing import VerifierContract
from specplug.types.caps import Distribution, VerifierCaps
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
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


def altered(change) -> type[ReferenceVerifier]:
    """Return a verifier that returns something else than the reference: a change of its result, given the draft."""

    def verify(self, draft, target, sampling, uniforms):
        return change(ReferenceVerifier.verify(self, draft, target, sampling, uniforms), draft)

    return type("Planted", (ReferenceVerifier,), {"verify": verify})


def given(change) -> type[ReferenceVerifier]:
    """Return a verifier that gets other arguments than it should: those that `change` returns."""
    verify = ReferenceVerifier.verify
    return type("Planted", (ReferenceVerifier,), {"verify": lambda self, *arguments: verify(self, *change(*arguments))})


def warm(draft, target, sampling, uniforms):
    return draft, target, replace(sampling, temperature=sampling.temperature.clamp(min=0.5), all_greedy=False), uniforms


def padded(draft, target, sampling, uniforms):
    """Take logits for padded, whatever their starts say."""
    starts = torch.arange(draft.batch_size, device=draft.device) * (draft.draft_length + 1)
    return draft, TargetLogits(target.logits, starts), sampling, uniforms


def read_back(draft, target, sampling, uniforms):
    cut = draft.view(draft.batch_size, int(draft.lengths.max()))
    return cut, target, sampling, Uniforms(uniforms.accept[:, : cut.draft_length], uniforms.draw)


NEXT_ROWS = given(lambda *of: (*of[:3], Uniforms(of[3].accept.roll(1, 0), of[3].draw.roll(1, 0))))
ONE_HOT_ALONE = given(lambda draft, *others: (draft.as_one_hot(), *others))
"""Uses the numbers of the next row; declares distributions, and judges drafts as one-hot."""


class LastNumber(ReferenceVerifier):
    """Draws with a number of a place that may not have been reached."""

    def _draw_number(self, uniforms, num_accepted):
        return uniforms.draw[:, -1]


class DrawnByRow(ReferenceVerifier):
    """Takes a row's draft for drawn if its first token is."""

    def verify(self, draft, *others):
        drawn = None if draft.drawn is None else draft.drawn[:, :1].expand_as(draft.drawn)
        return super().verify(replace(draft, drawn=drawn), *others)


class FirstResidual(ReferenceVerifier):
    """Takes the recovered token from the first position's draft distribution."""

    def _draft_distribution_at(self, draft, columns, places, vocab):
        return super()._draft_distribution_at(draft, columns, torch.zeros_like(places), vocab)


def whole(draft, target, sampling, uniforms):
    """Forget top-k, top-p and min-p where the draft states a distribution."""
    if draft.distribution is not Distribution.ONE_HOT:
        sampling = replace(sampling, top_k=None, top_p=None, min_p=None)
    return draft, target, sampling, uniforms


def without(**filters: None) -> type[ReferenceVerifier]:
    """Return a verifier that ignores a filter."""
    return given(lambda draft, target, sampling, numbers: (draft, target, replace(sampling, **filters), numbers))


def in_order(first, then) -> type[ReferenceVerifier]:
    """Return a verifier that applies the sampling parameters that `first` returns, and after these those of `then`."""

    def distribution(self, target, sampling, *sizes):
        found = ReferenceVerifier._target_distribution(self, target, first(sampling), *sizes)
        again = TargetLogits.dense(found.log())
        return ReferenceVerifier._target_distribution(self, again, then(sampling), *sizes)

    return type("Planted", (ReferenceVerifier,), {"_target_distribution": distribution})


def cold(sampling, **filters):
    """Return sampling parameters at temperature 1."""
    return replace(sampling, temperature=torch.ones_like(sampling.temperature), **filters)


class AbsoluteMinP(ReferenceVerifier):
    """Takes min-p for a probability, and not for a share of the largest one."""

    def _target_distribution(self, target, sampling, *sizes):
        found = super()._target_distribution(target, replace(sampling, min_p=None), *sizes)
        least = torch.minimum(sampling.min_p[:, None, None], found.amax(-1, keepdim=True))
        return torch.nn.functional.normalize(torch.where(found < least, 0.0, found), 1, -1)


ENGINES, PREFIX, SAME = (
    "test_returns_what_engines_expect",
    "test_accepts_a_prefix_of_the_draft",
    "test_decides_the_same_for",
)
DISTRIBUTION = "test_emits_the_targets_distribution"
PLANTED = {
    "long ids": (altered(lambda it, _: replace(it, token_ids=it.token_ids.long())), ENGINES, "token_ids is .*int64"),
    "narrow": (
        altered(lambda it, draft: replace(it, token_ids=it.token_ids[:, : draft.draft_length])),
        *(ENGINES, "token_ids is"),
    ),
    "counts the bonus": (altered(lambda it, _: replace(it, num_accepted=it.num_accepted + 1)), PREFIX, "accepted"),
    "leaves padding": (
        altered(lambda it, _: replace(it, token_ids=it.token_ids.clamp(min=0))),
        *(PREFIX, "after what is emitted; expected -1"),
    ),
    "repeats the first row": (
        altered(lambda it, _: replace(it, token_ids=it.token_ids[:1].expand_as(it.token_ids))),
        *(PREFIX, "expected a"),
    ),
    "needs a row": (altered(lambda it, _: it.num_accepted.max() or it), "test_takes_empty_drafts", "max"),
    "warm when greedy": (given(warm), "test_greedy_rows_emit_the_largest_logits", "when greedy"),
    "the last number": (LastNumber, SAME, "other numbers after the emitted tokens"),
    "numbers of the next row, alone": (NEXT_ROWS, SAME, "a row by itself"),
    "numbers of the next row, in order": (NEXT_ROWS, SAME, "the rows in another order"),
    "no mask": (DroppedMask, SAME, "other values in undefined memory"),
    "assumes padding": (given(padded), SAME, "flat logits"),
    "cleans the draft": (
        altered(lambda it, draft: draft.token_ids.clamp_(min=0) is not None and it),
        *("test_changes_nothing_that_it_reads", "has changed draft.token_ids"),
    ),
    "reads back": (given(read_back), "test_reads_nothing_back", "meta"),
    "no distributions": (
        ONE_HOT_ALONE,
        *("test_keeps_what_the_target_would_have_drawn", "Judge drafts by their draft_"),
    ),
    "accepts always": (AcceptsAlways, DISTRIBUTION, "off by .* with one-hot drafts, plain"),
    "all drawn": (
        given(lambda draft, *others: (replace(draft, drawn=None), *others)),
        *(DISTRIBUTION, "off by .* for a token that is not drawn"),
    ),
    "drawn by row": (DrawnByRow, DISTRIBUTION, "off by .* for the first of two tokens"),
    "the first residual": (FirstResidual, DISTRIBUTION, "off by .* for two tokens"),
    "all of the target": (given(whole), DISTRIBUTION, "off by .* with draft_.*, top-k"),
    "no top-k": (without(top_k=None), DISTRIBUTION, "off by .*, top-k"),
    "no top-p": (without(top_p=None), DISTRIBUTION, "off by .*, top-p"),
    "no min-p": (without(min_p=None), DISTRIBUTION, "off by .*, min-p"),
    "an absolute min-p": (AbsoluteMinP, DISTRIBUTION, "off by .*, min-p"),
    "top-p before top-k": (
        in_order(
            lambda sampling: replace(sampling, top_k=None, min_p=None), lambda sampling: cold(sampling, top_p=None)
        ),
        *(DISTRIBUTION, "off by .*, all"),
    ),
    "min-p before top-p": (
        in_order(lambda sampling: replace(sampling, top_p=None), lambda sampling: cold(sampling, top_k=None)),
        *(DISTRIBUTION, "off by .*, top-p, min-p"),
    ),
    "the temperature last": (
        in_order(cold, lambda sampling: SamplingBatch(sampling.temperature)),
        *(DISTRIBUTION, "off by .* with"),
    ),
    **{name: (mutant, DISTRIBUTION, "are off by") for name, mutant in LOSSY_MUTANTS.items()},
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake):
    verifier, clause, message = PLANTED[mistake]
    arguments = (message,) if clause == SAME else ()
    with pytest.raises(Exception, match=message):
        getattr(contract_of(verifier)(), clause)(*arguments)


def contract_of(verifier: type[ReferenceVerifier], caps: VerifierCaps = FULL) -> type[VerifierContract]:
    spec = VerifierSpec(name=verifier.__name__, factory=verifier, summary="", caps=caps)
    return type("Contract", (VerifierContract,), {"spec": spec})


def test_every_clause_has_a_planted_verifier_and_a_docstring():
    assert {clause for _, clause, _ in PLANTED.values()} == clauses(VerifierContract)


def test_a_verifier_is_held_to_what_it_declares_alone():
    """The same verifier is right where it declares nothing: its drafts are one-hot then."""
    contract_of(ONE_HOT_ALONE, ONE_HOT)().test_keeps_what_the_target_would_have_drawn()
