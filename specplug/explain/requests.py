"""Summaries of the requests of a trace, to find the slow one: how long its tokens took, and what drafts gave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from specplug.trace import TraceRow, read_trace

LEAST_TOKENS = 8
"""Requests with fewer tokens are in no list: a few steps say little."""

MAX_LISTED = 100
"""Most requests in a list."""


class Summary(BaseModel):
    """One request.

    Attributes:
        request, tenant: as in the trace; "" for no tenant.
        tokens: number of tokens of the answer, after the first step that is traced.
        steps: number of steps that gave them.
        tau: tokens per step.
        drafted, kept: number of draft tokens after trimming, and of those that became part of the answer.
        seconds: time from the first step's end to the last one's.
        ms_per_token: the same in milliseconds, for each of the tokens.
    """

    request: str
    tenant: str
    tokens: int
    steps: int
    tau: float
    drafted: int
    kept: int
    seconds: float
    ms_per_token: float


class Requests(BaseModel):
    """The requests of a trace.

    Attributes:
        requests: number of requests with `LEAST_TOKENS` tokens or more.
        slowest: those whose tokens took longest, the slowest first.
        worst_drafted: those with the fewest tokens per step, the worst first.
    """

    requests: int
    slowest: list[Summary]
    worst_drafted: list[Summary]


@dataclass(slots=True)
class _Counts:
    """What the rows of one request add up to; `end` is the length of its text."""

    step: int
    time: float
    end: int
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    kept: int = 0


def requests_of(path: str | Path, tenant: str | None, newest: int | None, limit: int) -> Requests:
    """Return the slowest and the worst drafted requests of a trace, at most so many of each.

    Args:
        path: the trace.
        tenant: look at this tenant's requests only; None looks at all.
        newest: look at so many last bytes of the file only.

    Raises:
        TraceError: the file cannot be read, or is not a trace of this version.
    """
    found = summarised(row for row in read_trace(path, None, newest) if tenant in (None, row.tenant))
    return Requests(
        requests=len(found),
        slowest=sorted(found, key=lambda each: -each.ms_per_token)[:limit],
        worst_drafted=sorted(found, key=lambda each: each.tau)[:limit],
    )


def summarised(rows: Iterable[TraceRow]) -> list[Summary]:
    """Return a summary of each request with enough tokens; of an id that was used again, of its last use."""
    counts: dict[tuple[str, str], _Counts] = {}
    for row in rows:
        key = (row.request, row.tenant)
        mine = counts.get(key)
        if mine is None or (row.emitted and row.start != mine.end):
            counts[key] = _Counts(row.step, row.time, row.start + len(row.emitted))
            continue
        if row.step != mine.step:
            mine.steps += 1
            mine.step = row.step
            mine.seconds += max(0.0, row.time - mine.time)  # a clock may be set back
            mine.time = row.time
        mine.tokens += len(row.emitted)
        mine.end += len(row.emitted)
        mine.drafted += len(row.ids)
        mine.kept += row.accepted
    return [
        Summary(
            request=request,
            tenant=tenant,
            tokens=each.tokens,
            steps=each.steps,
            tau=each.tokens / each.steps,
            drafted=each.drafted,
            kept=each.kept,
            seconds=each.seconds,
            ms_per_token=1000 * each.seconds / each.tokens,
        )
        for (request, tenant), each in counts.items()
        if each.tokens >= LEAST_TOKENS and each.steps
    ]
