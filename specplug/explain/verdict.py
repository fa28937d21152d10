"""The verdict on an answer: in sentences, what its steps, and the time that they took, were lost to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import mean, median

from specplug.explain.steps import Step

LONG = 3.0
"""A step is long that takes so many times the median."""

_LEAST_SHARE = 0.1  # of the steps, or of the time, for a sentence about it

_FAULTS = "the server's log and the faults of /specplug/status say more"
_HAD = {
    "nothing found": "no draft, as nothing was found that continued the text: a prediction, references or a corpus "
    "would help if they hold what the answer repeats",
    "not planned": "no draft, as the policy planned none",
    "does not pay": "no draft, as the policy expected drafts to cost more time than they save at this load",
    "policy failed": f"no draft, as the policy failed: {_FAULTS}",
    "failed": f"no draft, as a proposer failed, was late or is switched off after faults: {_FAULTS}",
    "switched off": "no draft, as an operator had switched speculation off",
    "opted out": "no draft, as the request takes none",
    "trimmed": "a draft that the policy dropped, as it was too unsure to be worth verifying",
    "never verified": "a draft that the engine dropped before verification",
    "grammar": "a draft that the grammar cut",
    "not traced": "tokens outside the trace",
    "refused": "a draft whose first token the model refused",
    "cut": "a draft of which the model kept a part",
    "limit": "a draft that was kept whole, as long as the plan allowed: a longer limit may gain",
    "whole": "a draft that was kept whole",
}


def verdict(steps: Sequence[Step]) -> list[str]:
    """Return the sentences, the most important first."""
    counted = [step for step in steps if step.reason not in ("prefill", "last token", "stopped")]
    sentences = [*_times([step.seconds for step in counted if step.seconds is not None])]
    classes = Counter(map(_class_of, counted))
    for name, count in classes.most_common():
        if count >= _LEAST_SHARE * len(counted):
            sentences.append(f"{count} of {len(counted)} steps had {_HAD[name]}.")
    return [*sentences, *_driest([token.source for step in steps for token in step.tokens])]


def _class_of(step: Step) -> str:
    if not step.drafted or step.reason in ("never verified", "grammar"):
        return step.reason if step.reason in _HAD else "not planned"
    if step.accepted < step.drafted and step.reason != "accepted":
        return "cut" if step.accepted else "refused"
    return "limit" if step.allowed == step.drafted == step.found else "whole"


def _driest(sources: Sequence[str | None]) -> list[str]:
    """Return a sentence about the longest part of the text without an accepted draft token."""
    length = begin = place = 0
    for is_drafted, part in groupby(sources, key=bool):
        count = len(list(part))
        if not is_drafted and count > max(1, length):
            length = count
            begin = place
        place += count
    where = f"has {length} tokens, from token {begin + 1} on"
    return [f"The longest part without a kept draft token {where}."] if length else []


def _times(seconds: Sequence[float]) -> list[str]:
    """Return a sentence about time, of which long steps may have taken much."""
    seconds = [it for it in seconds if it > 0]  # a clock may be set back
    if not seconds:
        return []
    typical = median(seconds)
    total = sum(seconds)
    long = [it for it in seconds if it > LONG * typical]
    if sum(long) - typical * len(long) < _LEAST_SHARE * total:
        return [f"{len(seconds)} steps took {total:.2f} s, {1000 * typical:.1f} ms each in the median."]
    return [
        f"{len(long)} of {len(seconds)} steps took {sum(long):.2f} of {total:.2f} s, {1000 * mean(long):.0f} ms each "
        f"where the median is {1000 * typical:.1f} ms: other requests' prompts, preemption or a pause, not drafts."
    ]
