"""Explanation: one answer, its steps, and what they were lost to."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from specplug.errors import TraceError
from specplug.explain.steps import Step, steps_of
from specplug.explain.verdict import verdict
from specplug.text.token_texts import Decode
from specplug.trace import TraceRow, read_trace, requests_in

OWN = "the model, after a draft"
BARE = "the model, without a draft"
LOST = "[-3]"
"""Kinds of spans that have no source."""

_MOST_LISTED = 6


class Span(NamedTuple):
    """A piece of an answer as it is shown: its `kind` is a source, or one of the constants; `about` says more."""

    text: str
    kind: str
    about: str


class Explanation(BaseModel):
    """One answer, explained.

    Attributes:
        request, tenant: as in the trace; "" for no tenant.
        tau: tokens per step.
        sources: by source, its draft tokens: "drafted" and "kept".
        undrafted: steps without drafts, by reason.
        verdict: in sentences, what decided how fast the answer came.
    """

    request: str
    tenant: str
    text: str
    tau: float
    sources: dict[str, dict[str, int]]
    undrafted: dict[str, int]
    verdict: list[str]
    steps: list[Step]

    @property
    def title(self) -> str:
        """The request, its tokens and its steps."""
        owner = f", tenant {self.tenant}" if self.tenant else ""
        count = sum(len(step.tokens) for step in self.steps)
        return f"{self.request}{owner}: {count} tokens in {len(self.steps)} steps, {self.tau:.2f} a step"

    def legend(self) -> Iterator[tuple[str, str]]:
        """Yield the kinds of spans, and how much there is of each."""
        for name, count in self.sources.items():
            yield name, f"{count['kept']} tokens of the answer, of {count['drafted']} drafted"
        yield OWN, "the token after the kept ones"
        for why, steps in self.undrafted.items():
            yield BARE, f"{steps} of {len(self.steps)} steps: {why}"
        yield LOST, "so many draft tokens were not kept here"

    def spans(self) -> Iterator[Span]:
        """Yield the answer's tokens, and where a draft was cut a mark."""
        for step in self.steps:
            at = f"step {step.step}"
            rest = OWN if step.drafted else BARE
            named = [f"{at}, {token.source}, {token.confidence:.0%} sure" for token in step.tokens]
            why = f"{at}: {rest}" + ("" if step.drafted else f" ({step.reason})")
            spans = [
                Span(token.text, token.source or rest, about if token.source else why)
                for token, about in zip(step.tokens, named, strict=True)
            ]
            if step.lost and step.reason not in ("accepted", "stopped"):
                lost = [f"{token.text!r} ({token.source}, {token.confidence:.0%} sure)" for token in step.lost]
                reason = "" if step.reason == "rejected" else f" {step.reason}"
                spans.insert(
                    step.accepted, Span(f"[-{len(lost)}{reason}]", LOST, f"{at}, {step.reason}: {', '.join(lost)}")
                )
            yield from spans


def rows_of(path: str | Path, request: str, tenant: str | None = None, newest: int | None = None) -> list[TraceRow]:
    """Return a request's rows of a trace.

    Args:
        path: the trace.
        request: its id, or the begin of it, as engines append to the ids that clients see.
        tenant: look at this tenant's requests only; None looks at all.
        newest: look at so many last bytes of the file only.

    Raises:
        TraceError: there is no such request, or there are several.
    """
    keys = [key for key in requests_in(path, newest) if tenant in (None, key[1])]
    keys = [key for key in keys if key[0] == request] or [
        (name, owner)
        for name, owner in keys
        if name.startswith(request) or re.sub(r"^\d+_", "", name).startswith(request)  # vLLM numbers answers
    ]
    if len(keys) == 1:
        ((name, owner),) = keys
        if rows := [row for row in read_trace(path, name, newest) if row.tenant == owner]:
            return rows
        keys = []  # the trace grew meanwhile, and its newest part no longer holds the request
    names = [f"{name} (tenant {owner!r})" if owner else name for name, owner in reversed(keys[-_MOST_LISTED:])]
    raise TraceError.build(
        "several requests of the trace have such an id" if keys else "no such request in the trace",
        who=repr(request),
        found=f"{len(keys)}, the newest {', '.join(names)}" if keys else None,
        expected="the id of an answer of two tokens or more, or the begin of it",
        remedy="Name one of them in full" if keys else None,
    )


def explained(rows: Sequence[TraceRow], decode: Decode) -> Explanation:
    """Return the explanation of the rows of one request; of an id that was used again, of its last use."""
    steps = steps_of(rows, decode)
    tokens = [token for step in steps for token in step.tokens]
    sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for token in tokens:
        if token.source is not None:
            sources[token.source].update(kept=1, drafted=1)
    for token in (token for step in steps for token in step.lost):
        sources[str(token.source)].update(kept=0, drafted=1)
    return Explanation(
        request=rows[0].request,
        tenant=rows[0].tenant,
        text="".join(token.text for token in tokens),
        tau=len(tokens) / len(steps),
        sources=dict(sorted(sources.items(), key=lambda item: -item[1]["kept"])),
        undrafted=Counter(step.reason for step in steps if not step.drafted),
        verdict=verdict(steps),
        steps=steps,
    )
