"""Explanation: the steps of one answer, from the rows of a trace, with the texts of its tokens."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel

from specplug.errors import TraceError
from specplug.explain.verdict import verdict
from specplug.text.token_texts import Decode, token_texts
from specplug.trace import TraceRow, read_trace

MOST_LISTED = 8
"""Most requests that an error lists."""


class Token(BaseModel):
    """A token of the answer, or a draft token that is not; one that the model alone gave has no `source`."""

    text: str
    source: str | None = None
    confidence: float | None = None


class Step(BaseModel):
    """A step of the answer: `TraceRow` has most fields.

    Attributes:
        seconds: since the step before; None for the first.
        drafted: draft tokens after trimming.
        tokens: what the answer got.
        lost: draft tokens that are no part of it.
    """

    step: int
    seconds: float | None
    batch: int
    allowed: int
    found: int
    drafted: int
    accepted: int
    reason: str
    tokens: list[Token]
    lost: list[Token]


class BySource(BaseModel):
    """Draft tokens of one source."""

    drafted: int = 0
    accepted: int = 0


class Explanation(BaseModel):
    """One answer, explained.

    Attributes:
        request, tenant: as in the trace; "" for no tenant.
        text: the answer.
        tau: tokens per step.
        sources: by source.
        undrafted: steps without drafts, by reason.
        unkept: for steps with drafts, draft tokens that were not kept, by reason.
        driest: the longest part of the text without an accepted draft token, and where it begins, in tokens.
        verdict: in sentences, what decided how fast it came.
    """

    request: str
    tenant: str
    text: str
    tau: float
    sources: dict[str, BySource]
    undrafted: dict[str, int]
    unkept: dict[str, int]
    driest: tuple[int, int]
    verdict: list[str]
    steps: list[Step]


def rows_of(path: str | Path, request: str, tenant: str | None = None, newest: int | None = None) -> list[TraceRow]:
    """Return a request's rows of a trace.

    Args:
        path: the trace.
        request: its id, or the begin of it, as engines append to the ids that clients see.
        tenant: look at this tenant's requests only; None at all.
        newest: look at so many last bytes of the file only.

    Raises:
        TraceError: there is no such request, or there are several.
    """
    found: defaultdict[tuple[str, str], list[TraceRow]] = defaultdict(list)
    for row in read_trace(path, request, newest):
        own = re.sub(r"^\d+_", "", row.request)  # of several answers to one request vLLM numbers each
        if tenant in (None, row.tenant) and (own.startswith(request) or row.request == request):
            found[row.request, row.tenant].append(row)
    exact = [key for key in found if key[0] == request]
    keys = exact or list(found)
    if not keys:
        raise TraceError.build(
            "no such request in the trace",
            who=repr(request),
            expected="the id of an answer that has two tokens or more, or the begin of it",
        )
    if len(keys) > 1:
        names = [f"{name} (tenant {owner!r})" if owner else name for name, owner in reversed(keys[-MOST_LISTED:])]
        more = f", and {len(keys) - len(names)} more" if len(keys) > len(names) else ""
        raise TraceError.build(
            "several requests of the trace have ids that begin so",
            who=repr(request),
            found=", ".join(names) + more,
            remedy="Name one of them in full",
        )
    return found[keys[0]]


def explained(rows: Sequence[TraceRow], decode: Decode) -> Explanation:
    """Return the explanation of the rows of one request; of an id that was used again, of its last use."""
    rows = _last_use(rows)
    texts = iter(token_texts(decode, [token for row in rows for token in row.emitted]))
    steps: list[Step] = []
    before: float | None = None
    for row in rows:
        own = [Token(text=next(texts)) for _ in row.emitted]
        early = min(len(own), max(0, row.base_len - row.start))  # by prefills and other steps that are no rows
        if early and own:
            steps += [_step(row, None, "prefill" if not steps else "not traced", [token]) for token in own[:early]]
        if not steps or row.step != steps[-1].step:
            steps.append(_step(row, before, row.reason, own[early:]))
            before = row.time
        else:  # what a grammar added to the drafts of the same step
            steps[-1].reason = row.reason
        _attribute(steps[-1], row, decode)
    tokens = [token for step in steps for token in step.tokens]
    return Explanation(
        request=rows[0].request,
        tenant=rows[0].tenant,
        text="".join(token.text for token in tokens),
        tau=len(tokens) / len(steps),
        sources=_by_source(steps),
        undrafted=Counter(step.reason for step in steps if not step.drafted),
        unkept=sum((Counter({step.reason: len(step.lost)}) for step in steps), Counter()),
        driest=_driest(tokens),
        verdict=verdict(steps),
        steps=steps,
    )


def _last_use(rows: Sequence[TraceRow]) -> Sequence[TraceRow]:
    begin, end = 0, -1
    for place, row in enumerate(rows):
        if row.emitted:
            begin = begin if row.start == end else place
            end = row.start + len(row.emitted)
    return rows[begin:]


def _step(row: TraceRow, before: float | None, reason: str, tokens: list[Token]) -> Step:
    seconds = None if before is None else round(row.time - before, 4)
    about = {"step": row.step, "batch": row.batch, "allowed": row.allowed, "found": row.found}
    return Step(**about, seconds=seconds, drafted=0, accepted=0, reason=reason, tokens=tokens, lost=[])


def _attribute(step: Step, row: TraceRow, decode: Decode) -> None:
    """Add a row's drafts to its step: the tokens that it got from them follow those that it has already."""
    nodes = row.accepted_nodes()
    for token, node in zip(step.tokens[step.accepted :], nodes, strict=False):
        token.source, token.confidence = row.source[node], row.confidence[node]
    lost = [node for node in range(len(row.ids)) if node not in set(nodes)]
    for text, node in zip(token_texts(decode, [row.ids[node] for node in lost]), lost, strict=True):
        step.lost.append(Token(text=text, source=row.source[node], confidence=row.confidence[node]))
    step.drafted += len(row.ids)
    step.accepted += row.accepted


def _by_source(steps: Iterable[Step]) -> dict[str, BySource]:
    found: defaultdict[str, BySource] = defaultdict(BySource)
    for step in steps:
        for token in step.tokens:
            if token.source is not None:
                found[token.source].accepted += 1
                found[token.source].drafted += 1
        for token in step.lost:
            found[str(token.source)].drafted += 1
    return dict(sorted(found.items(), key=lambda item: -item[1].accepted))


def _driest(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the length and the begin of the longest part without an accepted draft token."""
    best, begin = (0, 0), 0
    for place, token in enumerate(tokens):
        if token.source is not None:
            begin = place + 1
        best = max(best, (place + 1 - begin, begin), key=lambda part: part[0])
    return best
