"""Stop strings must end outputs where they end the control's."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.audit.differences import first_difference, is_near_tie
from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import Answer, Control, Material, Probe

STOP_LENGTH = 3
"""Characters of a stop string; as it may begin within one token and end in the next, a step's tokens can cross it."""


class Stops:
    """Repeats the greedy prompts with a stop string from the middle of each answer."""

    name = "stops"
    summary = "stop strings end outputs at the same character as the control's"

    def probes(self, material: Material) -> list[Probe]:
        """Return one probe for each prompt."""
        return [
            Probe(
                prompt=prompt,
                max_tokens=material.max_tokens,
                stop=(stop_within(answer.text),),
                expected=prompt + answer.token_ids,
            )
            for prompt, answer in zip(material.prompts, material.greedy, strict=True)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return the same probes."""
        return self.probes(material)

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Compare texts and reasons to finish; prompts whose greedy answers differ by a near tie are left out."""
        differences, compared, stopped = [], 0, 0
        for number, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
            greedy = first_difference(number, control.greedy[number], material.greedy[number])
            if greedy is not None and is_near_tie(greedy, control):
                continue
            compared += 1
            stopped += wanted.finish_reason == "stop"
            if (found.text, found.finish_reason) != (wanted.text, wanted.finish_reason):
                stop = stop_within(material.greedy[number].text)
                end, own = (f"{one.text[-20:]!r} ({one.finish_reason})" for one in (wanted, found))
                differences.append(f"prompt {number}, stop {stop!r}: expected {end}, found {own}")
        summary = f"{compared - len(differences)} of {compared} outputs end as the control's, {stopped} of them stopped"
        finding = judged(self.name, differences, summary, outputs=compared, stopped=stopped)
        if finding.status is Status.PASSED and not stopped:
            return Finding(self.name, Status.UNPROVEN, summary, figures=finding.figures)
        return finding


def stop_within(text: str) -> str:
    """Return a few characters from the middle of a text, or one that ends any text if it is too short."""
    middle = len(text) // 2
    return text[middle : middle + STOP_LENGTH].strip() or text[:1].strip() or "\n"
