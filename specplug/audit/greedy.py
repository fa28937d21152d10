"""Greedy outputs must be those of the control, token for token."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.audit.differences import SURPRISING, first_difference, is_near_tie, surprise
from specplug.audit.finding import Finding, judged
from specplug.audit.probe import Answer, Control, Material, Probe
from specplug.testing.equality import Difference

WRONG_EVERY = 4
"""In the second round every such token of the drafts is wrong, so that steps accept some tokens and reject others."""


class Greedy:
    """Compares greedy answers: as the prompts come, and again with drafts that are partly wrong.

    The second round sends the prompts in reverse order and with different lengths, so that rows have other neighbours
    and leave the batch at different times.
    """

    name = "greedy"
    summary = "greedy outputs equal the control's token for token; the logit gap tells rounding from a mistake"

    def probes(self, material: Material) -> list[Probe]:
        """Return the second round; the first one is in `material`."""
        pairs = list(enumerate(zip(material.prompts, material.greedy, strict=True)))
        return [
            Probe(prompt=prompt, max_tokens=_length(material, number), expected=prompt + half_right(answer.token_ids))
            for number, (prompt, answer) in reversed(pairs)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return nothing: the control has answered the prompts."""
        return []

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Judge both rounds; an output of the second one must be the beginning of the control's."""
        pairs = [*zip(control.greedy, material.greedy, strict=True)]
        for number, answer in enumerate(reversed(answers)):
            pairs.append((_shortened(control.greedy[number], _length(material, number)), answer))
        differences = [
            found for number, pair in enumerate(pairs) if (found := first_difference(number, *pair)) is not None
        ]
        ties = [one for one in differences if is_near_tie(one, control)]
        failures = [_described(one, len(material.prompts)) for one in differences if not is_near_tie(one, control)]
        certain = len(differences) - len(ties)
        rate = certain / max(1, _compared(pairs, differences))
        p = surprise(len(ties), len(pairs), control.self_differences, len(control.greedy))
        if p < SURPRISING:
            failures.append(f"near ties are too frequent for rounding: p = {p:.2g}")
        return judged(
            self.name,
            failures,
            f"{len(pairs) - len(differences)} of {len(pairs)} outputs equal the control's, {len(ties)} near ties "
            f"(gap < {control.tolerance:.2g}), {certain} differences{f' ({rate:.2%} of tokens)' if certain else ''}; "
            f"the control differs from itself on {control.self_differences} of {len(control.greedy)}",
            outputs=len(pairs),
            tokens=sum(len(answer.token_ids) for _, answer in pairs),
            near_ties=[_described(one, len(material.prompts)) for one in ties],
            differences=certain,
            departure_rate=rate,
            tolerance=control.tolerance,
            noise=control.noise,
        )


def half_right(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return a text with every `WRONG_EVERY`-th token replaced by another one of it."""
    changed = list(token_ids)
    for place in range(WRONG_EVERY - 1, len(changed), WRONG_EVERY):
        changed[place] = token_ids[place - 1] if token_ids[place - 1] != token_ids[place] else token_ids[0]
    return tuple(changed)


def _length(material: Material, number: int) -> int:
    return max(1, material.max_tokens - 3 * (number % 5))


def _shortened(answer: Answer, most: int) -> Answer:
    return Answer(token_ids=answer.token_ids[:most], top_logprobs=answer.top_logprobs[:most])


def _compared(pairs: Sequence[tuple[Answer, Answer]], differences: Sequence[Difference]) -> int:
    """Return the number of tokens up to the first difference of each output, with it."""
    ends = {one.request: one.position + 1 for one in differences}
    return sum(ends.get(number, len(answer.token_ids)) for number, (_, answer) in enumerate(pairs))


def _described(difference: Difference, prompts: int) -> str:
    again = " with drafts" if difference.request >= prompts else ""
    tokens = f"expected {_name(difference.expected)}, found {_name(difference.actual)}"
    return (
        f"prompt {difference.request % prompts}{again}, output token {difference.position}: {tokens}, "
        f"gap of log-probabilities {difference.gap:.3g}"
    )


def _name(token: int | None) -> str:
    return "the end" if token is None else f"token {token}"
