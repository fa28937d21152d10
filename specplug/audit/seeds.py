"""Sampled outputs with a seed must be those that the control samples with that seed."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.audit.differences import SURPRISING, first_difference, surprise
from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import Answer, Control, Material, Probe

TEMPERATURE = 0.7
SEEDS = (1, 2)
"""Seeds of each prompt."""


class Seeds:
    """Samples each prompt with some seeds, and compares the texts.

    Lossless speculation need not have this: rejection sampling keeps the distribution, but draws other tokens.  So the
    check runs only if it is named.  The control answers twice, the second time in reverse order, because its rounding
    may decide a draw, too.
    """

    name = "seeds"
    summary = "the same seed gives the control's text; only if named, as lossless speculation need not do so"

    def probes(self, material: Material) -> list[Probe]:
        """Return one probe for each prompt and seed, with the greedy answer to draft from."""
        return [
            Probe(
                prompt=prompt,
                max_tokens=material.max_tokens,
                temperature=TEMPERATURE,
                seed=seed,
                expected=prompt + answer.token_ids,
            )
            for prompt, answer in zip(material.prompts, material.greedy, strict=True)
            for seed in SEEDS
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return the same probes, and once more in reverse order."""
        probes = self.probes(material)
        return [*probes, *reversed(probes)]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Fail if outputs differ more often than the control's from its own; a few differences prove nothing."""
        first, again = expected[: len(answers)], [*reversed(expected[len(answers) :])]
        own = sum(one.token_ids != other.token_ids for one, other in zip(first, again, strict=True))
        found = [first_difference(number, *pair) for number, pair in enumerate(zip(first, answers, strict=True))]
        examples = [
            f"prompt {one.request // len(SEEDS)}, seed {SEEDS[one.request % len(SEEDS)]}: texts part at output token "
            f"{one.position}"
            for one in found
            if one is not None
        ]
        summary = (
            f"{len(answers) - len(examples)} of {len(answers)} outputs equal the control's; the control differs from "
            f"itself on {own}"
        )
        failures = examples if surprise(len(examples), len(answers), own, len(answers)) < SURPRISING else []
        result = judged(
            self.name, failures, summary, outputs=len(answers), differences=len(examples), self_differences=own
        )
        if examples and not failures:
            return Finding(self.name, Status.UNPROVEN, summary, tuple(examples[:1]), result.figures)
        return result
