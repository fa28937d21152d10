"""Arms of the benchmark, and what an arm's answer to a group of prompts holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

BASELINE = "no speculation"

Role = Literal["baseline", "plain", "built-in", "specplug"]


@dataclass(frozen=True)
class Arm:
    """One way to decode.

    Attributes:
        role: "built-in" is the engine's own speculation; "plain" decodes without drafts, like the baseline.
        launch: what starts it, as its engine takes it.
    """

    name: str
    role: Role
    launch: Any


@dataclass(frozen=True)
class Answer:
    """One arm's answers to a group of prompts that were sent together.

    Attributes:
        token_ids: of each answer.
        seconds: wall-clock time, prefill included.
        cpu: CPU seconds of the process that runs the model, in all its threads.
        steps: target steps, one per row that emitted: tokens / steps is tau, counted alike in every arm.
        drafted, accepted: draft tokens that were verified, and those of them that were kept.
        timeline: after each engine step, wall-clock and CPU seconds and tokens since the beginning; empty where an
            engine does not tell.
        prefill_steps: number of steps in the timeline until every answer had begun.
        uncounted: tokens that `tokens` leaves out.
    """

    token_ids: list[list[int]]
    seconds: float
    cpu: float
    steps: int
    drafted: int
    accepted: int
    timeline: list[list[float]] = field(default_factory=list)
    prefill_steps: int = 0
    uncounted: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of output tokens."""
        return sum(map(len, self.token_ids)) - self.uncounted

    def decoding(self) -> Answer:
        """Return the answer without the time and the tokens of its prefill steps."""
        if not self.prefill_steps:
            return self
        wall, cpu, tokens = self.timeline[self.prefill_steps - 1]
        rest = [[a - wall, b - cpu, c - tokens] for a, b, c in self.timeline[self.prefill_steps :]]
        seconds = self.seconds - wall
        used = self.cpu - cpu
        return replace(self, seconds=seconds, cpu=used, timeline=rest, prefill_steps=0, uncounted=int(tokens))


@dataclass
class Found:
    """Everything that a run found.

    Attributes:
        groups: the indices of the prompts of each group, in the order of the run; rounds one after another.
        kinds: of each group; "mixed" if its prompts are of several.
        answers: by arm, one for each group.
        left_out: by arm that did not run, why.
    """

    groups: list[list[int]]
    kinds: list[str]
    answers: dict[str, list[Answer]]
    left_out: dict[str, str] = field(default_factory=dict)

    def decoding(self) -> Found:
        """Return the run without the prefills of its answers."""
        return replace(self, answers={name: [each.decoding() for each in row] for name, row in self.answers.items()})


def chosen(arms: Sequence[Arm], parts: Sequence[str] | None) -> list[Arm]:
    """Return the baseline, and the arms whose names hold one of the parts; all of them without parts."""
    return [arm for arm in arms if arm.role == "baseline" or not parts or any(part in arm.name for part in parts)]


def requests(
    prompts: Sequence[Any], indices: Sequence[int], temperature: float, seeded: bool, ignore_eos: bool = False
) -> list[Mapping[str, Any]]:
    """Return the sampling parameters of prompts: "max_tokens", "temperature" and, if `seeded`, a "seed" for each.

    Request fields of specplug, which only vLLM's arms are sent, are "extra_args".
    """
    return [
        {"max_tokens": prompts[index].max_tokens, "temperature": temperature}
        | ({"seed": 1_000_003 * (index + 1)} if seeded else {})
        | ({"ignore_eos": True} if ignore_eos else {})
        | ({"extra_args": dict(prompts[index].fields)} if prompts[index].fields else {})
        for index in indices
    ]
