"""Output of `specplug corpus inspect`: segments, documents, and the continuations of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from specplug.corpus.inspecting import continuations
from specplug.corpus.names import hint, shortened
from specplug.corpus.segment import Segment
from specplug.corpus.sources import tokenizer_of
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.errors import CorpusError, SpecplugError
from specplug.text.tokenizers import Tokenizer
from specplug.tools.cli.output import table

_EXCERPT = 200

Owned = tuple[str, Segment]
"""A segment behind its tenant."""


Inspected = tuple[dict[str, Any], list[Table | str]]
"""An output: its data in JSON by key, and tables and lines for people."""


class Inspection(NamedTuple):
    """Inspection of one store, or only of a corpus or tenant of it, with at most `limit` lines.

    Without a tenant, where only one is possible, the unnamed one is meant; the tokenizer is the store's unless named.
    """

    root: Path
    corpus: str | None
    tenant: str | None
    tokenizer: str | None
    limit: int

    def describe(self) -> Inspected:
        """Return the segments, and the documents if a corpus is given."""
        view = View(self.root, None)
        found = list(self._segments(view))
        _, tenants, problems = view.snapshot
        if self.corpus is not None and not found:
            known = {name for segments in tenants.values() for segment in segments for name in segment.corpora}
            raise CorpusError.build("no such corpus", found=shortened(self.corpus), remedy=hint(self.corpus, known))
        data, shown = _segments_section(f"{self.root} (tokens of {view.tokenizer.name})", found, problems)
        if self.corpus is None:
            return data, shown
        documents, more = self._documents_section(self.corpus, found)
        return data | documents, shown + more

    def document(self, name: str) -> Inspected:
        """Return the beginning of a document."""
        ids = Store(self.root).document(name, corpus=self.corpus, tenant=self.tenant or "")
        first = ids[:_EXCERPT].tolist()
        try:
            text = self._loaded().decode(first)
            reason = ""
        except SpecplugError as error:
            text = None
            reason = f"Its text is not shown. {error}"
        data = {"name": name, "tokens": len(ids), "first_token_ids": first, "first_text": text}
        body = (" ".join(map(str, first)) if text is None else text) + ("" if len(ids) <= _EXCERPT else " ...")
        lines = [line for line in (f"{name}: {len(ids):,} tokens", body, reason) if line]
        return {"document": data}, [*lines]

    def continuations(self, text: str) -> Inspected:
        """Return the longest match of a text's end, and its continuations."""
        tokenizer = self._loaded()
        context = tokenizer.encode(text).tolist()
        view = View(self.root, tokenizer.fingerprint)
        segments = self._replace(tenant=self.tenant or "")._segments(view)
        found = continuations([segment for _, segment in segments], context, self.corpus)
        total = found.counts.total()
        most = [(token, tokenizer.decode([token]), count) for token, count in found.counts.most_common(self.limit)]
        matched = tokenizer.decode(context[len(context) - found.length :])
        data = {
            "matched_tokens": found.length,
            "matched_text": matched,
            "occurrences": total,
            "next": [{"token": token, "text": text, "count": count} for token, text, count in most],
        }
        rows = [(str(token), repr(text), f"{n:,}", f"{100 * n / total:.1f} %") for token, text, n in most]
        shown = table(f"What follows {matched!r}", ("token", "text", "count", "share"), rows)
        line = f"Tokens matched: the last {found.length} of {len(context)}. Occurrences: {total:,}."
        return {"continues": data}, [shown, line]

    def _loaded(self) -> Tokenizer:
        return tokenizer_of(Store(self.root), self.tokenizer)

    def _segments(self, view: View) -> Iterator[Owned]:
        for tenant, segments in view.snapshot.tenants.items():
            if self.tenant in (None, tenant):
                yield from ((tenant, it) for it in segments if self.corpus is None or self.corpus in it.corpora)

    def _of_corpus(self, segment: Segment) -> Any:
        """Return [d] bool, true for documents of the corpus."""
        return np.array([name == self.corpus for name in segment.corpora])[segment.corpus_of]

    def _documents_section(self, corpus: str, found: Sequence[Owned]) -> Inspected:
        listed = (
            (tenant, segment.name(int(index)), int(segment.lengths[index]))
            for tenant, segment in found
            for index in np.flatnonzero(self._of_corpus(segment))
        )
        some = list(islice(listed, self.limit))
        more = sum(int(self._of_corpus(segment).sum()) for _, segment in found) - len(some)
        data = [{"tenant": tenant, "name": name, "tokens": tokens} for tenant, name, tokens in some]
        rows = [(tenant, name, f"{tokens:,}") for tenant, name, tokens in some]
        lines = [f"{more:,} more; --limit shows them."] if more else []
        return {"documents": data}, [table(f"Documents of {corpus}", ("tenant", "document", "tokens"), rows), *lines]


def _segments_section(title: str, found: Sequence[Owned], problems: Sequence[str]) -> Inspected:
    data = []
    rows = []
    for tenant, segment in found:
        each = {"tenant": tenant, "segment": segment.id}
        counts = {"documents": len(segment), "tokens": int(segment.lengths.sum()), "bytes": segment.size}
        per_token = segment.size / max(counts["tokens"], 1)
        corpora = list(segment.corpora)
        data.append({**each, **counts, "bytes_per_token": per_token, "corpora": corpora})
        named = ", ".join(corpora[:4]) + (f" and {len(corpora) - 4} more" if len(corpora) > 4 else "")
        figures = [*(f"{count:,}" for count in counts.values()), f"{per_token:.2f}"]
        rows.append([*each.values(), *figures, named])
    columns = ("tenant", "segment", "documents", "tokens", "bytes", "bytes per token", "corpora")
    lines = [f"Does not serve: {problem}" for problem in problems]
    return {"segments": data}, [table(title, columns, rows), *lines]
