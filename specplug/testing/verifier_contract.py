"""Contract tests for verifiers: inherit `VerifierContract`, set `spec` to your verifier's, and run pytest.

    class TestTypical(VerifierContract):
        spec = VerifierSpec(name="typical", factory="mine:Typical", summary="...", caps=VerifierCaps(lossless=True))

Each test is one clause of the contract of `specplug.interfaces.Verifier`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest
import torch

from specplug.interfaces import Verifier
from specplug.plugins.specs import VerifierSpec
from specplug.testing.batches import VerifyStep, move_to
from specplug.testing.driver import NO_OPTIONS, context_for
from specplug.testing.output_distribution import MISTAKEN_DISTRIBUTIONS, Case, Knobs, TinyModel, distribution_error
from specplug.testing.wrappers import watch
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.draft import NO_TOKEN
from specplug.types.verification import Verification
from specplug.verify.draft_distribution import FittedVerifier

EXACT = 1e-5
"""Largest error of an enumerated probability that counts as rounding; planted mistakes are off by more than 1e-3."""


CHANGES = (
    "other numbers after the emitted tokens",
    "the rows in another order",
    "flat logits",
    "other values in undefined memory",
    "a row by itself",
)
"""What must not change a step's decision."""


def changed_steps(step: VerifyStep, found: Verification) -> Iterator[tuple[str, list[int], VerifyStep, bool]]:
    """Yield each of `CHANGES` of a step: its name, the rows to compare, the step, and whether its logits are flat."""
    numbers, order, flat, undefined, alone = CHANGES
    rows = list(range(step.draft.batch_size))
    yield numbers, rows, step.with_other_numbers(found.num_accepted), False
    yield order, rows[::-1], step.pick(rows[::-1]), False
    yield flat, rows, step, True
    for value in (NO_TOKEN, 0, step.dense.shape[-1], 2**31 - 1):
        yield undefined, rows, step.with_poison(value), False
    for row, length in enumerate(step.draft.lengths.tolist()):
        yield alone, [row], step.pick([row], draft_length=length), False


class VerifierContract:
    """The clauses that every verifier must satisfy.  Override the attributes; an autouse fixture may set them, too.

    Attributes:
        spec: the verifier under test.
        options: its own settings, as arguments of its options model.
        vocab_size, draft_length: sizes of the steps; most rows draft fewer tokens than `draft_length`.
        num_steps: number of random steps for each clause and distribution.
        device: the device that the verifier runs on.
    """

    spec: VerifierSpec
    options: Mapping[str, object] = NO_OPTIONS
    vocab_size: int = 5
    draft_length: int = 4
    num_steps: int = 12
    device: str = "cpu"

    def test_returns_what_engines_expect(self) -> None:
        """`token_ids` [B, N + 1] and `num_accepted` [B] are int32 on the draft's device."""
        for step in self.steps():
            found = step.verify(self.verifier(), device=self.device)
            rows, draft_length = step.draft.token_ids.shape
            for name, shape in (("token_ids", (rows, draft_length + 1)), ("num_accepted", (rows,))):
                tensor = getattr(found, name)
                kind = (tuple(tensor.shape), tensor.dtype, tensor.device.type)
                expected = (shape, torch.int32, torch.device(self.device).type)
                assert kind == expected, f"{self.who}: {name} is {kind}; expected {expected}"

    def test_accepts_a_prefix_of_the_draft(self) -> None:
        """`num_accepted` lies in [0, n], the accepted tokens are the draft's, one token follows, and then -1."""
        for step in self.steps():
            found = self.run(step)
            rows = zip(found.token_ids.tolist(), found.num_accepted.tolist(), _drafted(step), strict=True)
            for emitted, accepted, drafted in rows:
                assert 0 <= accepted <= len(drafted), f"{self.who}: accepted {accepted} of {len(drafted)} draft tokens"
                kept = emitted[:accepted]
                assert kept == drafted[:accepted], f"{self.who}: accepted {kept}; expected a prefix of {drafted}"
                follows, *rest = emitted[accepted:]
                is_id = 0 <= follows < self.vocab_size
                assert is_id, f"{self.who}: emitted {follows}; expected an id of the vocabulary"
                assert set(rest) <= {NO_TOKEN}, f"{self.who}: {rest} after what is emitted; expected {NO_TOKEN}"

    def test_takes_empty_drafts(self) -> None:
        """A step may have no rows; a step without draft tokens samples from the target."""
        for rows, draft_length in ((0, self.draft_length), (3, 0)):
            step = self._step(rows, Distribution.ONE_HOT, rows, draft_length)
            assert self.run(step).token_ids.shape == (rows, draft_length + 1)

    def test_greedy_rows_emit_the_largest_logits(self) -> None:
        """At temperature 0, draft tokens are accepted while they equal the argmax, and the next argmax follows."""
        self._needs_losslessness()
        for step, all_greedy in itertools.product(self.steps(), (False, True)):
            found = self.run(step.as_greedy(all_greedy=all_greedy))
            best = step.dense.argmax(-1).tolist()
            for row, drafted in enumerate(_drafted(step)):
                right = next((place for place, token in enumerate(drafted) if token != best[row][place]), len(drafted))
                emitted = _emitted(found)[row]
                expected = best[row][: right + 1]
                assert emitted == expected, f"{self.who}: emitted {emitted} when greedy; expected {expected}"

    def test_emits_the_targets_distribution(self) -> None:
        """The output's distribution equals the target's, by exact enumeration over tiny vocabularies."""
        self._needs_losslessness()
        for name, case in self.cases():
            error = distribution_error(self.verifier(), case, device=self.device)
            assert error < EXACT, f"{self.who}: probabilities of the output are off by {error:.2g} with {name}"

    def test_keeps_what_the_target_would_have_drawn(self) -> None:
        """The declared distribution is used, so drafts drawn from the target's own distribution are all accepted."""
        self._needs_losslessness()
        for step in self.steps():
            if step.draft.distribution is not Distribution.ONE_HOT:
                accepted = self.run(step.drawn_from_the_target()).num_accepted.tolist()
                drafted = step.draft.lengths.tolist()
                assert accepted == drafted, (
                    f"{self.who}: accepted {accepted} of {drafted} tokens drawn from the target's own distribution; "
                    f"expected all. Judge drafts by their {step.draft.distribution.value}, or do not declare them"
                )

    @pytest.mark.parametrize("change", CHANGES)
    def test_decides_the_same_for(self, change: str) -> None:
        """Numbers for positions after the emitted tokens, other rows, their order, undefined memory decide nothing.

        Nor does the form of the logits, padded to [B, N + 1, V] or flat.  The numbers for later positions are those of
        later steps; `test_emits_the_targets_distribution` checks that no number decides two things within a step.
        """
        for step in self.steps():
            found = self.run(step)
            for what, rows, other, is_flat in changed_steps(step, found):
                if what == change:
                    again = _emitted(other.verify(self.verifier(), flat=is_flat, device=self.device))
                    expected = [_emitted(found)[row] for row in rows]
                    assert again == expected, f"{self.who} decides otherwise for {what}: {again}; expected {expected}"

    def test_changes_nothing_that_it_reads(self) -> None:
        """Draft, logits, sampling parameters and random numbers belong to the engine and stay unchanged."""
        for step in self.steps():
            arguments = step.arguments(device=self.device)
            named = dict(zip(("draft", "target", "sampling", "uniforms"), arguments, strict=True))
            watch(f"{self.who}: verify", partial(self.verifier().verify, *arguments), **named)

    def test_reads_nothing_back(self) -> None:
        """No value is read on the host; tensors on "meta" have no values, so reading one raises."""
        verifier = self.verifier("meta")
        for step, all_greedy in itertools.product(self.steps(), (False, True)):
            step.as_greedy(all_greedy=all_greedy).verify(verifier, device="meta")

    def verifier(self, device: str | None = None) -> Verifier:
        """Build the verifier as an engine does, for drafts that fit its declaration."""
        caps = EngineCaps(self.draft_length)
        where = torch.device(device or self.device)
        context = context_for(self.spec, self.options, caps, vocab_size=self.vocab_size, device=where)
        return FittedVerifier(self.spec.build(context), self.spec.caps)

    def steps(self) -> Iterator[VerifyStep]:
        """Yield random steps, as many for one-hot drafts as for each declared distribution."""
        for number, distribution in enumerate((Distribution.ONE_HOT, *self.spec.caps.distributions)):
            for seed in range(self.num_steps):
                yield self._step(100 * number + seed, distribution, 1 + seed % 4, self.draft_length)

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Yield the cases to enumerate: fixed drafts, ragged drafts, and drafts from each declared distribution."""
        knobs = {
            "plain": Knobs(),
            "greedy": Knobs(0.0),
            "top-k": Knobs(1.3, top_k=2),
            "top-p": Knobs(1.3, top_p=0.9),
            "min-p": Knobs(1.3, min_p=0.1),
            "top-p, min-p": Knobs(1.3, top_p=0.85, min_p=0.11),  # the other order keeps other tokens
            "all": Knobs(2.0, top_k=2, top_p=0.78, min_p=0.1),  # so does top-p before top-k or the temperature
        }
        case_of = partial(Case, TinyModel.random(3, 2, seed=0), judged_by=MISTAKEN_DISTRIBUTIONS)
        draft_model = TinyModel.random(3, 1, seed=1)
        for (name, how), drafted in itertools.product(knobs.items(), range(3)):
            yield f"one-hot drafts, {name}", case_of(how, (drafted,))
            yield f"padding, {name}", case_of(how, (), padding=(drafted,))
        yield "two draft tokens", Case(TinyModel.random(3, 3, seed=0), drafted=(0, 1))
        for distribution, (name, how) in itertools.product(self.spec.caps.distributions, knobs.items()):
            case = case_of(how, draft_model=draft_model, distribution=distribution)
            yield f"{distribution.value}, {name}", case
            yield f"{distribution.value} over a draft vocabulary", replace(case, draft_vocab=(2, 0))
            yield f"{distribution.value} for a token that is not drawn", replace(case, drafted=(0,), drawn=(False,))
        pair = Case(TinyModel.random(2, 3, seed=0), drafted=(0, 0), draft_model=TinyModel.random(2, 2, seed=1))
        both = Case(TinyModel.random(3, 3, seed=0), draft_model=TinyModel.random(3, 2, seed=1))
        for distribution in self.spec.caps.distributions:
            mixed = replace(pair, distribution=distribution, drawn=(True, False))
            yield f"{distribution.value} for the first of two tokens", mixed
            yield f"{distribution.value} for two tokens", replace(both, distribution=distribution)

    def run(self, step: VerifyStep) -> Verification:
        """Verify a step on the device and return the result on the CPU."""
        return move_to(step.verify(self.verifier(), device=self.device), "cpu")

    @property
    def who(self) -> str:
        """Return the verifier's name for messages."""
        return f"verifier {self.spec.name!r}"

    def _step(self, seed: int, distribution: Distribution, rows: int, draft_length: int) -> VerifyStep:
        sizes = {"vocab_size": self.vocab_size, "batch_size": rows, "draft_length": draft_length}
        return VerifyStep.random(seed, distribution, **sizes)

    def _needs_losslessness(self) -> None:
        if not self.spec.caps.lossless:
            pytest.skip("declares that it is lossy")


def _emitted(found: Verification) -> list[list[int]]:
    return [[token for token in row if token != NO_TOKEN] for row in found.token_ids.tolist()]


def _drafted(step: VerifyStep) -> list[list[int]]:
    lengths = step.draft.lengths.tolist()
    return [ids[:length] for ids, length in zip(step.draft.token_ids.tolist(), lengths, strict=True)]
