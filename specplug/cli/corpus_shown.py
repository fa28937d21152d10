"""Output of `specplug corpus inspect`: segments, documents, and the continuations of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from specplug.cli.output import print_line, print_table, printable
from specplug.corpus.counting import continuations
from specplug.corpus.names import hint, shortened
from specplug.corpus.store import Store
from specplug.corpus.tokenizing import tokenizer_of
from specplug.corpus.view import LiveSegment, View
from specplug.errors import CorpusError, SpecplugError
from specplug.text.tokenizers import Tokenizer

_EXCERPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the output.

    Attributes:
        key, data: the JSON form.
        columns: columns of the table, if there is one.
        rows: rows of the table.
        title: title of the table.
        remarks: lines printed below the table.
    """

    key: str
    data: Any
    title: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    remarks: Sequence[str] = field(default_factory=list)

    def print(self) -> None:
        """Print the table and the remarks."""
        if self.columns:
            print_table(printable(self.title), self.columns, ([printable(cell) for cell in row] for row in self.rows))
        for note in self.remarks:
            print_line(note)


class Looking:
    """Inspection of one store.

    Args:
        root: the store's folder.
        corpus: only this corpus; None: all.
        tenant: only this tenant; None: all, or the unnamed tenant where only one is possible.
        tokenizer: name of the tokenizer; None: the store's.
        limit: most lines to show.
    """

    def __init__(self, root: Path, corpus: str | None, tenant: str | None, tokenizer: str | None, limit: int) -> None:
        self._root, self._corpus, self._tenant = root, corpus, tenant
        self._tokenizer, self._limit = tokenizer, limit

    def overview(self) -> list[Part]:
        """Return the segments, and the documents if a corpus is given."""
        view = View(self._root, None)
        found = list(self._segments(view.snapshot.tenants))
        if self._corpus is not None and not found:
            known = {
                name for lives in view.snapshot.tenants.values() for live in lives for name in live.segment.corpora
            }
            raise CorpusError.build("no such corpus", found=shortened(self._corpus), remedy=hint(self._corpus, known))
        parts = [_segments_part(f"{self._root} (tokens of {view.tokenizer.name})", found, view.snapshot.problems)]
        if self._corpus is not None:
            parts.append(self._documents_part(self._corpus, found))
        return parts

    def document(self, name: str) -> list[Part]:
        """Return the beginning of a document."""
        store = Store.open(self._root)
        ids = store.document(name, corpus=self._corpus, tenant=self._tenant or "")
        first = ids[:_EXCERPT].tolist()
        try:
            text, note = self._loaded().decode(first), ""
        except SpecplugError as error:
            text, note = None, f"Its text is not shown. {error}"
        data = {"name": name, "tokens": len(ids), "first_token_ids": first, "first_text": text}
        more = "" if len(ids) <= _EXCERPT else " ..."
        body = (text if text is not None else " ".join(map(str, first))) + more
        remarks = [f"{printable(name)}: {len(ids):,} tokens", body, note]
        return [Part(key="document", data=data, remarks=[line for line in remarks if line])]

    def continuations(self, text: str) -> list[Part]:
        """Return the longest match of a text's end, and its continuations."""
        tokenizer = self._loaded()
        context = tokenizer.encode(text).tolist()
        tenant, tenants = self._tenant or "", View(self._root, tokenizer.fingerprint).snapshot.tenants
        lives = [live for _, live in self._segments({tenant: tenants.get(tenant, ())})]
        found = continuations([self._only(live) for live in lives], context)
        total = found.counts.total()
        most = [(token, tokenizer.decode([token]), count) for token, count in found.counts.most_common(self._limit)]
        matched = tokenizer.decode(context[len(context) - found.length :])
        data = {
            "matched_tokens": found.length,
            "matched_text": matched,
            "occurrences": total,
            "next": [{"token": token, "text": text, "count": count} for token, text, count in most],
        }
        return [
            Part(
                key="continues",
                data=data,
                title=f"What follows {matched!r}",
                columns=("token", "text", "count", "share"),
                rows=[(str(token), repr(text), f"{n:,}", f"{100 * n / total:.1f} %") for token, text, n in most],
                remarks=[f"Tokens matched: the last {found.length} of {len(context)}. Occurrences: {total:,}."],
            )
        ]

    def _loaded(self) -> Tokenizer:
        return tokenizer_of(Store.open(self._root), self._tokenizer)

    def _segments(self, tenants: Mapping[str, Sequence[LiveSegment]]) -> Iterator[tuple[str, LiveSegment]]:
        """Yield the segments to inspect, each with its tenant."""
        for tenant, lives in tenants.items():
            if self._tenant in (None, tenant):
                for live in lives:
                    if self._corpus is None or self._of_corpus(live).any():
                        yield tenant, live

    def _of_corpus(self, live: LiveSegment) -> Any:
        """Return [d] bool, true for live documents of the corpus."""
        segment = live.segment
        numbers = [number for number, name in enumerate(segment.corpora) if name == self._corpus]
        mask = np.isin(segment.corpus_of, numbers)
        return mask if live.dead is None else mask & (live.dead == 0)

    def _only(self, live: LiveSegment) -> LiveSegment:
        """Return the segment with only the corpus's documents alive."""
        return live if self._corpus is None else live._replace(dead=(~self._of_corpus(live)).astype(np.uint8))

    def _documents_part(self, corpus: str, found: Sequence[tuple[str, LiveSegment]]) -> Part:
        listed = (
            (tenant, live.segment.name(int(index)), int(live.segment.lengths[index]))
            for tenant, live in found
            for index in np.flatnonzero(self._of_corpus(live))
        )
        some = list(islice(listed, self._limit))
        total = sum(int(self._of_corpus(live).sum()) for _, live in found)
        return Part(
            key="documents",
            data=[{"tenant": tenant, "name": name, "tokens": tokens} for tenant, name, tokens in some],
            title=f"Documents of {corpus}",
            columns=("tenant", "document", "tokens"),
            rows=[(tenant, name, f"{tokens:,}") for tenant, name, tokens in some],
            remarks=[f"{total - len(some):,} more; --limit shows them."] if total > len(some) else [],
        )


def _segments_part(title: str, found: Sequence[tuple[str, LiveSegment]], problems: Sequence[str]) -> Part:
    data = [_segment(tenant, live) for tenant, live in found]
    return Part(
        key="segments",
        data=data,
        title=title,
        columns=("tenant", "segment", "documents", "tokens", "bytes", "bytes per token", "dead", "corpora"),
        rows=[
            (
                *(one["tenant"], one["segment"]),
                *(f"{one[key]:,}" for key in ("documents", "tokens", "bytes")),
                *(f"{one['bytes_per_token']:.2f}", f"{100 * one['dead_share']:.0f} %"),
                _some(one["corpora"]),
            )
            for one in data
        ],
        remarks=[f"Does not serve: {problem}" for problem in problems],
    )


def _segment(tenant: str, live: LiveSegment) -> dict[str, Any]:
    segment = live.segment
    tokens = int(segment.lengths.sum())
    dead = 0 if live.dead is None else int(segment.lengths[live.dead != 0].sum())
    return {
        "tenant": tenant,
        "segment": segment.id,
        "documents": len(segment),
        "tokens": tokens,
        "bytes": segment.size,
        "bytes_per_token": segment.size / max(tokens, 1),
        "dead_share": dead / max(tokens, 1),
        "corpora": list(segment.corpora),
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
