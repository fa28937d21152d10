"""Log-probabilities must be those of the control."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.audit.differences import first_difference, is_near_tie, largest_gap
from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import Answer, Control, Material, Probe

REQUESTED = 5
LEAST_TOLERANCE = 1e-3
"""Servers round log-probabilities, and some compute them in lower precision than the logits."""


class Logprobs:
    """Repeats the greedy prompts with log-probabilities, and compares them up to the first token that differs."""

    name = "logprobs"
    summary = "log-probabilities of greedy outputs equal the control's"

    def probes(self, material: Material) -> list[Probe]:
        """Return one probe for each prompt."""
        return [
            Probe(
                prompt=prompt,
                max_tokens=material.max_tokens,
                top_logprobs=REQUESTED,
                expected=prompt + answer.token_ids,
            )
            for prompt, answer in zip(material.prompts, material.greedy, strict=True)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return nothing: the control has answered the prompts with log-probabilities."""
        return []

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Compare tokens and the log-probabilities of all tokens that both sides list."""
        if not control.gives_logprobs:
            return Finding(self.name, Status.NOT_RUN, "the control gives no log-probabilities")
        tolerance = max(LEAST_TOLERANCE, control.tolerance)
        differences, largest, compared = [], 0.0, 0
        for number, (found, wanted) in enumerate(zip(answers, control.greedy, strict=True)):
            if wanted.token_ids and not wanted.top_logprobs:
                continue  # the control has not answered this prompt
            if len(found.top_logprobs) != len(found.token_ids):
                differences.append(
                    f"prompt {number}: {len(found.top_logprobs)} log-probabilities for {len(found.token_ids)} tokens"
                )
                continue
            difference = first_difference(number, wanted, found)
            end = len(wanted.token_ids) if difference is None else difference.position
            if difference is not None and not is_near_tie(difference, control):
                differences.append(f"prompt {number}: another text from output token {end} on")
            for place in range(min(end, len(found.token_ids))):
                gap = largest_gap(found.top_logprobs[place], wanted.top_logprobs[place])
                largest, compared = max(largest, gap), compared + 1
                if not found.top_logprobs[place].keys() & wanted.top_logprobs[place].keys() or gap > tolerance:
                    differences.append(f"prompt {number}, output token {place}: log-probabilities differ by {gap:.3g}")
                    break
        return judged(
            self.name,
            differences,
            f"log-probabilities of {compared} tokens, largest difference {largest:.2g} (fails above {tolerance:.2g})",
            tokens=compared,
            largest=largest,
            tolerance=tolerance,
        )
