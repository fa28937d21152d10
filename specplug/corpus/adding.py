"""Adding documents: segments are built aside and committed atomically."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specplug.corpus.building import Builder, checked
from specplug.corpus.documents import Document, Tokens
from specplug.corpus.locking import Building
from specplug.corpus.manifest import Entry, Manifest
from specplug.corpus.names import check_name, shortened
from specplug.corpus.present import Present
from specplug.corpus.segment import write_segment
from specplug.corpus.status import Added, Progress
from specplug.corpus.tenant import Tenant
from specplug.errors import CorpusError
from specplug.text.fingerprint import Fingerprint


class Item(NamedTuple):
    """A document to be written to a segment; see `Builder.append`."""

    corpus: str
    name: bytes
    texts: Sequence[Tokens]

    @property
    def size(self) -> int:
        """Length of its text in the segment."""
        return sum(map(len, self.texts)) + len(self.texts)


class Addition:
    """Documents for one corpus of a tenant.

    Args:
        tenant: the tenant.
        corpus: its name.  It must not exist, unless `extend` is set: then documents that it already has are skipped.
        max_tokens: the most tokens that the tenant may have afterwards; None: no limit.
        segment_tokens: the most text of one segment, in tokens.
        progress: called with the numbers of documents and tokens so far.
    """

    def __init__(
        self,
        tenant: Tenant,
        corpus: str,
        *,
        extend: bool,
        max_tokens: int | None,
        segment_tokens: int,
        progress: Progress | None,
    ) -> None:
        self._tenant, self._corpus, self._extend = tenant, check_name("corpus", corpus), extend
        self._max_tokens, self._segment_tokens, self._progress = max_tokens, segment_tokens, progress
        self._documents = self._tokens = self._empty = self._there = self._same_name = 0
        self._present: Present | None = None

    def make(self, documents: Iterable[Document]) -> Added:
        """Add them, all or none; see `Store.add`."""
        held = self._admit(self._tenant.manifest())
        self._tenant.prepare()
        if self._extend:
            self._present = self._tenant.reading(lambda manifest: Present(self._tenant, manifest, self._corpus))
        with Building(self._tenant.folder) as building:
            items = self._items(documents, held)
            entries = write_segments(items, building, self._tenant.tokenizer, self._segment_tokens)
            if not entries and not self._there:
                raise CorpusError.build(
                    "nothing to add",
                    who=self._who,
                    found=f"{self._empty} documents, all of them empty" if self._empty else "no documents",
                    expected="at least one with a token",
                )
            with self._tenant.alone() as manifest:
                self._check_size(self._admit(manifest))
                if entries:
                    self._tenant.commit(manifest, (*manifest.entries, *entries))
        size = sum(entry.size for entry in entries)
        counts = self._documents, self._tokens, self._empty, len(entries), size, self._there, self._same_name
        return Added(*counts)

    @property
    def _who(self) -> str:
        return f"corpus {shortened(self._corpus)}"

    def _admit(self, manifest: Manifest) -> int:
        """Check that the corpus may be added, and return the number of tokens that the tenant has."""
        if not self._extend and self._corpus in manifest.corpora():
            raise CorpusError.build(
                "a corpus of this name is there already",
                who=self._who,
                remedy="Remove it first, extend it (--extend), or bring it up to date by `specplug corpus sync`",
            )
        return manifest.tokens

    def _check_size(self, held: int) -> None:
        if self._max_tokens is not None and held + self._tokens > self._max_tokens:
            raise CorpusError.build(
                "too much text for one tenant",
                who=self._who,
                found=f"{self._tokens} tokens or more beside {held} that it has",
                expected=f"max_tokens {self._max_tokens} at most",
                remedy="Remove corpora, or raise corpora.max_tokens",
            )

    def _items(self, documents: Iterable[Document], held: int) -> Iterator[Item]:
        for document in documents:
            texts = checked(document, self._tenant.tokenizer.vocab_size)
            if not texts:
                self._empty += 1
                continue
            if self._is_there(document.name, texts):
                self._there += 1
                self._report_progress()
                continue
            self._documents += 1
            self._tokens += len(texts[0])
            self._check_size(held)
            self._report_progress()
            yield Item(self._corpus, document.name.encode(), texts)

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._documents + self._there, self._tokens)

    def _is_there(self, name: str, texts: Sequence[Tokens]) -> bool:
        """Return whether the corpus already has an identical document."""
        if self._present is None or self._present.take(name, texts):
            return self._present is not None
        self._same_name += self._present.has(name)
        return False


def write_segments(items: Iterable[Item], building: Building, tokenizer: Fingerprint, limit: int) -> list[Entry]:
    """Write documents, in order, to as many segments as needed.

    Args:
        items: the documents.
        building: provides the files.
        tokenizer: the store's tokenizer.
        limit: the most text of one segment, in tokens.

    Raises:
        CorpusError: a document does not fit into any segment, or a file could not be written.
    """
    entries, builder = [], Builder()
    for item in items:
        if item.size + 1 > limit:
            raise CorpusError.build(
                "a document is too large",
                who=f"document {shortened(item.name.decode(errors='replace'))}",
                found=f"{item.size} tokens with its re-tokenized prefixes",
                expected=f"fewer than {limit}",
                remedy="Split it",
            )
        if builder.size + item.size > limit:
            entries.append(_written(builder, building, tokenizer))
            builder = Builder()
        builder.append(*item)
    return [*entries, _written(builder, building, tokenizer)] if len(builder) else entries


def _written(builder: Builder, building: Building, tokenizer: Fingerprint) -> Entry:
    path, live = building.next_path(), builder.parts()
    size = write_segment(path, builder.sections(), builder.corpora, tokenizer)
    return Entry(path.name, size, len(builder), sum(part.tokens for part in live), builder.size, live)
