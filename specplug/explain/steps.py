"""The steps of one answer, from the rows of a trace, with the texts of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from specplug.text.token_texts import Decode, token_texts
from specplug.trace import TraceRow


class Token(BaseModel):
    """A token of the answer, or a draft token; one that the model alone gave has no `source`."""

    text: str
    source: str | None = None
    confidence: float = 0.0


class Step(BaseModel):
    """A step of the answer; `TraceRow` describes what is not described here.

    Attributes:
        seconds: since the step before; None where that is not known.
        drafted: draft tokens after trimming.
        tokens: what the answer got.
        lost: draft tokens that are no part of it.
    """

    step: int
    batch: int
    allowed: int
    found: int
    reason: str
    seconds: float | None = None
    drafted: int = 0
    accepted: int = 0
    tokens: list[Token]
    lost: list[Token] = []


def steps_of(rows: Sequence[TraceRow], decode: Decode) -> list[Step]:
    """Return the steps of the rows of one request; of an id that was used again, of its last use."""
    rows = _last_use(rows)
    texts = iter(token_texts(decode, [token for row in rows for token in row.emitted]))
    steps: list[Step] = []
    before: float | None = None
    for row in rows:
        about: dict[str, Any] = {"step": row.step, "batch": row.batch, "allowed": row.allowed, "found": row.found}
        own = [Token(text=next(texts)) for _ in row.emitted]
        early = min(len(own), max(0, row.base_len - row.start))  # of steps without rows, such as SGLang's prefills
        for token in own[:early]:
            steps.append(Step(**about, reason="not traced" if steps else "prefill", tokens=[token]))
        if not steps or row.step != steps[-1].step or early:
            seconds = None if before is None else round(row.time - before, 4)
            steps.append(Step(**about, reason=row.reason, seconds=seconds, tokens=own[early:]))
            before = row.time
        steps[-1].reason = row.reason  # another row of a step has what its grammar drafted
        _attribute(steps[-1], row, decode)
    return steps


def _last_use(rows: Sequence[TraceRow]) -> Sequence[TraceRow]:
    begin = 0
    end = -1
    for place, row in enumerate(rows):
        if row.emitted:
            begin = begin if row.start == end else place
            end = row.start + len(row.emitted)
    return rows[begin:]


def _attribute(step: Step, row: TraceRow, decode: Decode) -> None:
    """Add a row's drafts to its step: the tokens that it got from them follow those that it has already."""
    nodes = row.accepted_nodes()
    for token, node in zip(step.tokens[step.accepted :], nodes, strict=False):
        token.source = row.source[node]
        token.confidence = row.confidence[node]
    lost = [node for node in range(len(row.ids)) if node not in nodes]
    for text, node in zip(token_texts(decode, [row.ids[node] for node in lost]), lost, strict=True):
        step.lost.append(Token(text=text, source=row.source[node], confidence=row.confidence[node]))
    step.drafted += len(row.ids)
    step.accepted += row.accepted
