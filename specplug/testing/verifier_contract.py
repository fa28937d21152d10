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
from typing import Any

import pytest
import torch

from specplug.interfaces import Verifier
from specplug.plugins.specs import VerifierSpec
from specplug.testing.batches import VerifyStep, moved
from specplug.testing.driver import NO_OPTIONS, context_for
from specplug.testing.output_distribution import MISTAKEN_DISTRIBUTIONS, Case, Knobs, TinyModel, distribution_error
from specplug.testing.wrappers import watch
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.draft_distribution import FittedVerifier

EXACT = 1e-5
"""Largest error of an enumerated probability that counts as rounding; planted mistakes are off by more than 1e-3."""


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
            shapes = {
                "token_ids": (step.draft.batch_size, step.draft.draft_length + 1),
                "num_accepted": (step.draft.batch_size,),
            }
            for name, shape in shapes.items():
                tensor = getattr(found, name)
                kind = (tuple(tensor.shape), tensor.dtype, tensor.device.type)
                expected = (shape, torch.int32, torch.device(self.device).type)
                assert kind == expected, f"{self.who}: {name} is {kind}; expected {expected}"

    def test_accepts_a_prefix_of_the_draft(self) -> None:
        """`num_accepted` lies in [0, n], the accepted tokens are the draft's, one token follows, and then -1."""
        for step in self.steps():
            found = self.run(step)
            rows = zip(found.token_ids.tolist(), found.num_accepted.tolist(), strict=True)
            for (emitted, accepted), drafted in zip(rows, _drafted(step), strict=True):
                assert 0 <= accepted <= len(drafted), f"{self.who}: accepted {accepted} of {len(drafted)} draft tokens"
                kept = emitted[:accepted]
                follows = emitted[accepted]
                rest = emitted[accepted + 1 :]
                assert kept == drafted[:accepted], f"{self.who}: accepted {kept}; expected a prefix of {drafted}"
                assert 0 <= follows < self.vocab_size, (
                    f"{self.who}: emitted {follows}; expected an id of the vocabulary"
                )
                assert set(rest) <= {NO_TOKEN}, f"{self.who}: {rest} after what is emitted; expected {NO_TOKEN}"

    def test_takes_empty_drafts(self) -> None:
        """A step may have no rows; a step without draft tokens samples from the target."""
        for rows, draft_length in ((0, self.draft_length), (3, 0)):
            step = VerifyStep.random(
                rows, Distribution.ONE_HOT, vocab_size=self.vocab_size, batch_size=rows, draft_length=draft_length
            )
            assert self.run(step).token_ids.shape == (rows, draft_length + 1)

    def test_greedy_rows_emit_the_largest_logits(self) -> None:
        """At temperature 0, draft tokens are accepted while they equal the argmax, and the next argmax follows."""
        self._needs_losslessness()
        for step, all_greedy in itertools.product(self.steps(), (False, True)):
            found = self.run(step.greedy(all_greedy=all_greedy))
            best = step.dense.argmax(-1).tolist()
            for row, drafted in enumerate(_drafted(step)):
                right = next((place for place, token in enumerate(drafted) if token != best[row][place]), len(drafted))
                emitted = [token for token in found.token_ids[row].tolist() if token != NO_TOKEN]
                expected = best[row][: right + 1]
                assert emitted == expected, f"{self.who}: emitted {emitted} when greedy; expected {expected}"

    def test_emits_the_targets_distribution(self) -> None:
        """The output's distribution equals the target's, by exact enumeration over tiny vocabularies."""
        self._needs_losslessness()
        for name, case in self.cases():
            error = distribution_error(_OnDevice(self.verifier(), self.device), case)
            assert error < EXACT, f"{self.who}: probabilities of the output are off by {error:.2g} with {name}"

    def test_keeps_what_the_target_would_have_drawn(self) -> None:
        """The declared distribution is used, so drafts drawn from the target's own distribution are all accepted."""
        self._needs_losslessness()
        for step in self.steps():
            if step.draft.distribution is not Distribution.ONE_HOT:
                accepted = self.run(step.drawn_from_the_target()).num_accepted
                drafted = step.draft.lengths
                assert torch.equal(accepted, drafted), (
                    f"{self.who}: accepted {accepted.tolist()} of {drafted.tolist()} tokens drawn from the target's "
                    f"own distribution; expected all. Judge drafts by their {step.draft.distribution.value}, or do not "
                    "declare them"
                )

    def test_uses_each_number_once(self) -> None:
        """The numbers for positions after the emitted tokens decide nothing, because later steps use them.

        `test_emits_the_targets_distribution` checks that no number decides two things within a step.
        """
        for step in self.steps():
            found = self.run(step)
            self.same(
                found,
                self.run(step.with_other_numbers(found.num_accepted)),
                "with other numbers after the emitted tokens",
            )

    def test_does_not_depend_on_other_rows(self) -> None:
        """A single row in a buffer of its own length gives the same result as in a batch."""
        for step in self.steps():
            found = self.run(step)
            for row, length in enumerate(step.draft.lengths.tolist()):
                alone = self.run(step.pick([row], draft_length=length))
                part = Verification(found.token_ids[row : row + 1, : length + 1], found.num_accepted[row : row + 1])
                self.same(part, alone, "for a row by itself")

    def test_does_not_depend_on_the_order_of_rows(self) -> None:
        """The result does not depend on the order of the rows."""
        for step in self.steps():
            found = self.run(step)
            order = list(range(step.draft.batch_size))[::-1]
            turned = Verification(found.token_ids[order], found.num_accepted[order])
            self.same(turned, self.run(step.pick(order)), "with the rows in another order")

    def test_does_not_read_undefined_memory(self) -> None:
        """The result does not depend on the entries after a row's draft in the buffers."""
        for step, poison in itertools.product(self.steps(), (NO_TOKEN, 0, self.vocab_size, 2**31 - 1)):
            self.same(self.run(step), self.run(step.poisoned(poison)), f"with {poison} in undefined memory")

    def test_finds_logits_by_their_starts(self) -> None:
        """Logits may be padded to [B, N + 1, V] or flat, row after row."""
        for step in self.steps():
            self.same(self.run(step), moved(step.verify(self.verifier(), flat=True, device=self.device), "cpu"), "flat")

    def test_changes_nothing_that_it_reads(self) -> None:
        """Draft, logits, sampling parameters and random numbers belong to the engine and stay unchanged."""
        for step in self.steps():
            draft, target, sampling, numbers = (
                moved(it, self.device)
                for it in (step.draft, TargetLogits.dense(step.dense.clone()), step.sampling, step.uniforms)
            )
            verifier = self.verifier()
            arguments = {"draft": draft, "target": target, "sampling": sampling}
            action = partial(verifier.verify, draft, target, sampling, numbers)  # type: ignore[arg-type]
            watch(f"{self.who}: verify", action, **arguments, uniforms=numbers)

    def test_reads_nothing_back(self) -> None:
        """No value is read on the host; tensors on "meta" have no values, so reading one raises."""
        verifier = self.verifier("meta")
        for step, all_greedy in itertools.product(self.steps(), (False, True)):
            step.greedy(all_greedy=all_greedy).verify(verifier, device="meta")

    def verifier(self, device: str | None = None) -> Verifier:
        """Build the verifier as an engine does, for drafts that fit its declaration."""
        given = {"vocab_size": self.vocab_size, "device": torch.device(device or self.device)}
        context = context_for(self.spec, self.options, EngineCaps(self.draft_length), **given)
        return FittedVerifier(self.spec.build(context), self.spec.caps)

    def steps(self) -> Iterator[VerifyStep]:
        """Yield random steps, as many for one-hot drafts as for each declared distribution."""
        for number, distribution in enumerate((Distribution.ONE_HOT, *self.spec.caps.distributions)):
            for seed in range(self.num_steps):
                yield VerifyStep.random(
                    100 * number + seed,
                    distribution,
                    vocab_size=self.vocab_size,
                    batch_size=1 + seed % 4,
                    draft_length=self.draft_length,
                )

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Yield the cases to enumerate: fixed drafts, ragged drafts, and drafts from each declared distribution."""
        knobs = {"plain": Knobs(), "greedy": Knobs(0.0), "all": Knobs(1.3, top_k=2, top_p=0.9, min_p=0.1)}
        target = TinyModel.random(3, 2, seed=0)
        draft_model = TinyModel.random(3, 1, seed=1)
        for (name, how), drafted in itertools.product(knobs.items(), range(3)):
            yield f"one-hot drafts, {name}", Case(target, how, (drafted,), judged_by=MISTAKEN_DISTRIBUTIONS)
            yield (
                f"padding, {name}",
                Case(target, how, padding=(drafted,), drafted=(), judged_by=MISTAKEN_DISTRIBUTIONS),
            )
        yield "two draft tokens", Case(TinyModel.random(3, 3, seed=0), drafted=(0, 1))
        for distribution, temperature in itertools.product(self.spec.caps.distributions, (1.0, 0.7)):
            case = Case(
                target,
                Knobs(temperature),
                draft_model=draft_model,
                distribution=distribution,
                judged_by=MISTAKEN_DISTRIBUTIONS,
            )
            yield f"{distribution.value} at temperature {temperature}", case
            yield f"{distribution.value} over a draft vocabulary", replace(case, draft_vocab=(2, 0))

    def run(self, step: VerifyStep) -> Verification:
        """Verify a step on the device and return the result on the CPU."""
        return moved(step.verify(self.verifier(), device=self.device), "cpu")

    def same(self, expected: Verification, found: Verification, when: str) -> None:
        """Assert that two verifications decided the same."""
        one, other = (
            [[token for token in row if token != NO_TOKEN] for row in it.token_ids.tolist()] for it in (expected, found)
        )
        assert one == other, f"{self.who} decides otherwise {when}; found {other}, expected {one}"

    @property
    def who(self) -> str:
        """Return the verifier's name for messages."""
        return f"verifier {self.spec.name!r}"

    def _needs_losslessness(self) -> None:
        if not self.spec.caps.lossless:
            pytest.skip("declares that it is lossy")


class _OnDevice(Verifier):
    """A verifier whose arguments are moved to a device and whose results are moved to the CPU."""

    def __init__(self, verifier: Verifier, device: str) -> None:
        self._verifier = verifier
        self._device = device

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        arguments: Any = [moved(argument, self._device) for argument in (draft, target, sampling, uniforms)]
        return moved(self._verifier.verify(*arguments), "cpu")


def _drafted(step: VerifyStep) -> list[list[int]]:
    """Return the draft tokens of each row."""
    lengths = step.draft.lengths.tolist()
    return [ids[:length] for ids, length in zip(step.draft.token_ids.tolist(), lengths, strict=True)]
