"""Execution of a benchmark: each group of prompts is answered by both sides, one right after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specplug.errors import EngineError
from specplug.tools.bench.prompts import Group, Prompt
from specplug.tools.bench.sequential import FEWEST, Look, next_look
from specplug.tools.bench.sides import Side
from specplug.tools.client.answers import Answer
from specplug.tools.client.figures import MEMORY
from specplug.tools.client.http import answer_all

WARM_UP = Prompt("The quick brown fox")
"""Sent to each side before anything is timed."""

LENGTHS = (16, 64)
"""Fewest and most tokens of an answer, if they are fitted to the limit of time."""

ENOUGH = 36
"""Groups that answers are fitted for, if there are more."""

COUNTS = ("target_steps", "proposed", "accepted", "emitted")
"""Counters of `/specplug/status` from which tokens per step are computed."""

FAILURES = 3
"""Pairs in a row without a whole answer that end a run."""

_OTHERS = 1.25
"""From so many times the tokens of the answers on, the server's counters are of other clients, too."""

_AFTER_END = 2
"""Tokens of each answer that engines may count after its end, where steps overlap."""

_HANGS = 5
"""A pair that takes so many times the mean of those before is a failure, if the limit of time ends it."""

Counts = Mapping[str, int]
End = Literal["decided", "prompts", "minutes", "failures", "interrupted"]


@dataclass(frozen=True, slots=True)
class Timed:
    """One side's answers to a group, in `seconds` from the first request sent to the last one answered.

    `counts` are the increases of the server's counters meanwhile; empty if they are not read.
    """

    answers: tuple[Answer, ...]
    seconds: float
    counts: Counts

    @property
    def tokens(self) -> int:
        """Return the tokens of all answers together."""
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds in which every answer grows by a token, after the first."""
        longest = max(answer.num_tokens for answer in self.answers)
        if longest == 1 or all(answer.last <= answer.first for answer in self.answers):  # they come in one piece
            return self.seconds / longest
        return max(0.0, self.seconds - min(answer.first for answer in self.answers)) / (longest - 1)

    @property
    def is_remembered(self) -> bool:
        """Return whether earlier responses gave half of the tokens or more."""
        if not self.counts or self.has_others:
            return False
        return 2 * self.counts["remembered"] >= max(1, self.counts["emitted"])

    @property
    def has_others(self) -> bool:
        """Return whether other clients were served meanwhile, so that the counts say little of these answers."""
        return bool(self.counts) and self.counts["emitted"] > _OTHERS * self.tokens + _AFTER_END * len(self.answers)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides' answers to a group; `errors` are those of requests, the untimed ones included."""

    group: Group
    tested: Timed | None
    baseline: Timed | None
    errors: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether every request was answered with tokens, so that the pair is counted."""
        return not self.errors

    @property
    def is_remembered(self) -> bool:
        """Return whether earlier responses gave half of a side's tokens or more."""
        return any(side is not None and side.is_remembered for side in (self.tested, self.baseline))

    @property
    def has_others(self) -> bool:
        """Return whether other clients were served meanwhile."""
        return any(side is not None and side.has_others for side in (self.tested, self.baseline))

    def seconds(self) -> tuple[float, float]:
        """Return the seconds in which each side makes equally many tokens, the tested side's first, if it is whole.

        If texts part and the answers of one side are shorter, both sides' seconds are scaled to its tokens.
        """
        assert self.tested is not None
        assert self.baseline is not None
        tokens = min(self.tested.tokens, self.baseline.tokens)
        return (
            self.tested.seconds * tokens / self.tested.tokens,
            self.baseline.seconds * tokens / self.baseline.tokens,
        )


@dataclass
class Course:
    """A run at one concurrency, so far: `groups` that there are, its pairs, looks, seconds, and how it ended.

    `level` is the probability that any of its intervals misses the ratio, and `max_tokens` the most of an answer; None
    fits them to the limit.
    """

    concurrency: int
    groups: Sequence[Group]
    level: float
    max_tokens: int | None = None
    pairs: list[Pair] = field(default_factory=list)
    looks: tuple[Look, ...] = ()
    seconds: float = 0.0
    ended: End = "interrupted"

    @property
    def counted(self) -> list[Pair]:
        """Return the pairs that are whole and not from older memory."""
        return [pair for pair in self.pairs if pair.is_whole and not pair.is_remembered]

    def fraction(self, limit: float) -> float:
        """Return which part of the groups or of the limit in seconds is over."""
        return min(1.0, max(len(self.pairs) / len(self.groups), self.seconds / limit))

    def look(self, fraction: float) -> bool:
        """Look at the pairs so far, once a fraction of the run is over; return false with fewer than `FEWEST`.

        A second look at the same pairs replaces the first one, as it spends more of the error.
        """
        pairs = len(self.counted)
        if pairs < FEWEST:
            return False
        before = self.looks[:-1] if self.looks and self.looks[-1].pairs == pairs else self.looks
        spent = self.looks[-1].fraction if self.looks else 0.0
        self.looks = (*before, Look(pairs, max(spent, fraction)))
        return True


async def measure(
    sides: tuple[Side, Side],
    course: Course,
    limit: float,
    advance: Callable[[Group], None],
    is_known: Callable[[Course], bool],
) -> None:
    """Run a course until `is_known`, called at each look, or its groups or `limit` seconds are over.

    What is measured stands in `course`, also if the run is interrupted.  `advance` is called after each group.
    """
    try:
        async with asyncio.timeout(limit):
            await _measure(sides, course, limit, advance, is_known)
    except TimeoutError:  # in the middle of a pair
        course.ended = "minutes"
        waited = limit - course.seconds
        if waited > _HANGS * course.seconds / max(1, len(course.pairs)):
            error = f"no answer within {waited:.0f} s, until the limit of time"
            course.pairs.append(
                Pair(course.groups[min(len(course.pairs), len(course.groups) - 1)], None, None, (error,))
            )
        course.seconds = limit
        course.look(1.0)
    finally:
        if course.ended in ("failures", "interrupted"):
            course.look(course.fraction(limit))


async def _measure(
    sides: tuple[Side, Side],
    course: Course,
    limit: float,
    advance: Callable[[Group], None],
    is_known: Callable[[Course], bool],
) -> None:
    began = time.perf_counter()
    for side in sides:
        await _send(side, [WARM_UP], 16)
        course.seconds = time.perf_counter() - began
    if course.max_tokens is None:
        course.max_tokens = await _fitting_length(sides, course, began + limit)
    warmed = time.perf_counter()
    course.seconds = warmed - began
    for number, group in enumerate(course.groups, 1):
        course.pairs.append(await _pair(sides, group, course.concurrency, course.max_tokens))
        now = time.perf_counter()
        course.seconds = now - began
        advance(group)
        if number >= FAILURES and not any(pair.is_whole for pair in course.pairs[-FAILURES:]):
            course.ended = "failures"
            return
        # The first pairs, in which a server may compile, do not tell whether the next one would exceed the limit.
        is_over = number >= FEWEST and course.seconds + (now - warmed) / number > limit
        is_last = is_over or number == len(course.groups)
        is_due = len(course.counted) >= next_look(course.looks[-1].pairs if course.looks else 0)
        if (is_last or is_due) and course.look(1.0 if is_last else course.fraction(limit)) and is_known(course):
            course.ended = "decided"
            return
        if is_last:
            course.ended = "prompts" if number == len(course.groups) else "minutes"
            return


async def _fitting_length(sides: tuple[Side, Side], course: Course, end: float) -> int:
    """Return the most tokens of an answer for which there is time for all groups, or for `ENOUGH` of them.

    One or two short pairs are measured for it, the second one because a server may compile in the first.  They are
    taken from the last groups, which a slow server does not reach.  One that fails is reported.
    """
    shortest, longest = LENGTHS
    found = shortest
    for group in course.groups[:-3:-1]:
        began = time.perf_counter()
        trial = await _pair(sides, group, course.concurrency, shortest)
        now = time.perf_counter()
        if not trial.is_whole or trial.tested is None or trial.baseline is None:
            course.pairs.append(trial)
            continue
        per_token = trial.tested.seconds_per_token + trial.baseline.seconds_per_token
        spare = (end - now) / min(len(course.groups), ENOUGH) - (now - began)
        found = max(found, min(longest, shortest + int(spare / max(per_token, 1e-9))))
        if found == longest:
            break
    return found


async def _pair(sides: tuple[Side, Side], group: Group, together: int, max_tokens: int) -> Pair:
    """Answer a group by both sides, after the prompts have been put into the prefix caches of both."""
    errors: list[str] = []
    timed: dict[int, Timed] = {}
    try:
        for side in {side.server.url: side for side in sides}.values():
            answers = await _send(side, group.prompts, 1, together)
            errors += [answer.error for answer in answers if answer.error]
        for place in (0, 1) if group.tested_first else (1, 0):
            if not errors:
                timed[place] = found = await _timed(sides[place], group.prompts, together, max_tokens)
                errors += [error for answer in found.answers if (error := _error(answer))]
    except EngineError as error:  # of the status
        errors.append(str(error))
    return Pair(group, timed.get(0), timed.get(1), tuple(errors))


def _error(answer: Answer) -> str | None:
    return answer.error or (None if answer.num_tokens else "an answer without tokens in its `usage`")


async def _timed(side: Side, prompts: Sequence[Prompt], together: int, max_tokens: int) -> Timed:
    before = await _counts(side)
    # Connections are open before the clock runs: of a server whose counts are read one would be, of another one none.
    await asyncio.gather(*(side.server.model() for _ in range(together)))
    began = time.perf_counter()
    answers = await _send(side, prompts, max_tokens, together)
    seconds = time.perf_counter() - began
    after = await _counts(side)
    return Timed(tuple(answers), seconds, {name: after[name] - before[name] for name in after})


async def _counts(side: Side) -> Counts:
    """Return the counters of a server's drafts, summed over its engines."""
    if side.status is None:
        return {}
    parts = list((await side.server.status()).metrics)
    totals = {name: sum(getattr(part.total, name) for part in parts) for name in COUNTS}
    memory = [counts for part in parts for name, counts in part.by_source.items() if name.endswith(MEMORY)]
    return {**totals, "remembered": sum(counts.accepted for counts in memory)}


async def _send(side: Side, prompts: Sequence[Prompt], max_tokens: int, together: int = 1) -> list[Answer]:
    """Send greedy, streamed requests, `together` of them in flight."""
    common = {"model": side.model, "max_tokens": max_tokens, "temperature": 0.0, **side.fields}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}

    async def send(prompt: Prompt) -> Answer:
        return await side.server.stream(prompt.path, {**prompt.body(), **common, **streamed})

    return await answer_all(prompts, together, send, lambda: None)
