"""Synchronising a corpus with its sources: only new and changed documents are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specplug.corpus.adding import Addition, write_segments
from specplug.corpus.documents import Document, Tokens
from specplug.corpus.locking import Building
from specplug.corpus.names import name_hash
from specplug.corpus.present import Present
from specplug.corpus.status import Synced
from specplug.errors import CorpusError


class Sync(Addition):
    """The replacement of a corpus's documents; takes the arguments of `Addition`, including `extend`."""

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]
        self._written: Counter[int] = Counter()
        self._kept_tokens = 0

    def bring_up_to_date(self, documents: Iterable[Document]) -> Synced:
        """Add, replace and remove documents atomically; see `Store.sync`."""
        tenant = self._tenant
        tenant.prepare()
        with tenant.merging(), Building(tenant.folder) as building:  # so that the examined segments stay in place
            before = tenant.manifest()
            self._present = present = Present(tenant, before, self._corpus)
            items = self._items(documents, before.tokens - present.tokens)
            entries = write_segments(items, building, tenant.tokenizer, self._segment_tokens)
            if not self._documents + self._there:
                raise CorpusError.build(
                    "no documents to bring the corpus up to date with",
                    who=self._who,
                    found=f"{self._empty} documents, all of them empty" if self._empty else "none",
                    remedy="If it is to be empty, remove it",
                )
            left = present.left()
            with tenant.alone() as manifest:
                others = present.without_left(manifest)
                self._check_size(manifest.tokens - present.tokens)
                if entries or left:
                    tenant.commit(manifest, (*others, *entries))
        replaced = (left & self._written).total()
        return Synced(
            self._documents - replaced,
            replaced,
            left.total() - replaced,
            self._there,
            self._empty,
            self._documents + self._there,
            self._tokens + self._kept_tokens,
            len(entries),
            sum(entry.size for entry in entries),
        )

    def _is_there(self, name: str, texts: Sequence[Tokens]) -> bool:
        if super()._is_there(name, texts):
            self._kept_tokens += len(texts[0])
            return True
        self._written[name_hash(name.encode())] += 1
        return False

    def _check_size(self, held: int) -> None:
        super()._check_size(held + self._kept_tokens)
