"""The corpus store: a folder of documents' tokens per tenant, which processes share, change and draft from.

    root/store.json                             whose tokens these are
    root/tenants/<tenant>/manifest.json         what is there: `manifest`
    root/tenants/<tenant>/<id>.safetensors      a segment: `layout`, `segment`
    root/tenants/<tenant>/lock, merging         held by whoever changes, whoever merges: `locking`

Each change is committed by putting a new manifest in place, so that it is there whole or not at all, whatever becomes
of its process; what such a process leaves is deleted by the next one that changes the tenant.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from specplug.corpus.adding import Addition
from specplug.corpus.documents import Document, Tokens
from specplug.corpus.identity import create_store, read_store
from specplug.corpus.layout import LOCK_SECONDS, MANIFEST_FILE, MOST_SEGMENT_TOKENS, SEGMENT_TOKENS, TENANTS
from specplug.corpus.manifest import Entry
from specplug.corpus.merging import merge
from specplug.corpus.reading import newest_document, problems_with
from specplug.corpus.removing import remove_corpus, remove_documents
from specplug.corpus.status import Added, CorpusInfo, Merged, Problem, Progress, Removed, Synced
from specplug.corpus.syncing import Sync
from specplug.corpus.tenant import Tenant, folders
from specplug.errors import CorpusError, SpecplugError
from specplug.text.fingerprint import Fingerprint

T = TypeVar("T")
# Inside the class, `list` is a method.
Infos: TypeAlias = list[CorpusInfo]
Problems: TypeAlias = list[Problem]
Found: TypeAlias = list[tuple[Tenant, Entry]]

_log = logging.getLogger("specplug")


class Store:
    """A corpus store that may be changed; processes that only draft from one have `view.View`.

    It holds nothing open and remembers nothing: each call reads what there is, so threads and processes may share a
    store as they like.

    Attributes:
        root: its folder.
        tokenizer: whose tokens it has.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        tokenizer: Fingerprint | None,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Open a store; see `open`."""
        if not 4 <= segment_tokens <= MOST_SEGMENT_TOKENS:
            expected = f"4 to {MOST_SEGMENT_TOKENS}"
            raise CorpusError.build("a wrong size", who="segment_tokens", found=segment_tokens, expected=expected)
        self.root = Path(root)
        self.tokenizer = read_store(self.root, tokenizer)
        self._segment_tokens, self._lock_seconds = segment_tokens, lock_seconds

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        tokenizer: Fingerprint,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> Store:
        """Make a store, or open one of the same tokenizer that is there already.

        Raises:
            CorpusError: a store of another tokenizer is there, or something else; or as `open`.
        """
        create_store(Path(root), tokenizer, lock_seconds)
        return cls(root, tokenizer, segment_tokens=segment_tokens, lock_seconds=lock_seconds)

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        tokenizer: Fingerprint | None = None,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> Store:
        """Open a store.

        Args:
            root: its folder.
            tokenizer: the one that its tokens must be of; None: any.
            segment_tokens: text of one segment at most, and so of one document; building takes 16 bytes a token.
            lock_seconds: waited for whoever else changes the same tenant.

        Raises:
            CorpusError: there is none, it is torn or of another version, or of another tokenizer: both are named.
        """
        return cls(root, tokenizer, segment_tokens=segment_tokens, lock_seconds=lock_seconds)

    def add(
        self,
        corpus: str,
        documents: Iterable[Document],
        *,
        tenant: str = "",
        extend: bool = False,
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Add a corpus, all of it or, where that fails, nothing.

        Args:
            corpus: its name, 1 to 256 characters, none that lives in this tenant.
            documents: taken one at a time; those without a token are left out.  Names may repeat.
            tenant: whose it is; nobody else's requests draft from it.
            extend: add to the corpus if it is there, but for documents that it has already, word for word.
            max_tokens: that the tenant may have afterwards; None: any number.
            progress: called with the documents and tokens so far, after each document.

        Raises:
            CorpusError: a name, a document or their number is refused, the disk is full, or another process did not
                let go of the tenant.  What `documents` raises passes through.
        """
        addition = Addition(
            self._tenant(tenant),
            corpus,
            extend=extend,
            max_tokens=max_tokens,
            segment_tokens=self._segment_tokens,
            progress=progress,
        )
        return addition.make(documents)

    def sync(
        self,
        corpus: str,
        documents: Iterable[Document],
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> Synced:
        """Let a corpus have these documents and no others: readers see what it had before, or all that it has now.

        What is there already, word for word and under the same name, stays where it is; nothing is written for it.

        Args:
            corpus: its name; it need not be there.
            documents: all that it is to have, taken one at a time.
            tenant, max_tokens: as of `add`.
            progress: called with the documents and tokens to be written so far.

        Raises:
            CorpusError: as `add`; there is no document at all; or another process changed the corpus meanwhile.  Then
                nothing was changed.
        """
        sync = Sync(
            self._tenant(tenant),
            corpus,
            extend=True,
            max_tokens=max_tokens,
            segment_tokens=self._segment_tokens,
            progress=progress,
        )
        return sync.bring_up_to_date(documents)

    def remove(self, corpus: str, *, documents: Sequence[str] | None = None, tenant: str = "") -> Removed:
        """Remove a corpus, or documents of it: all with one of the names.

        The text is out of sight at once; it is out of the files when nothing else in them lives, or by `merge`.

        Raises:
            CorpusError: there is no such corpus or document; nothing was removed.
        """
        if documents is None:
            return remove_corpus(self._tenant(tenant), corpus)
        return remove_documents(self._tenant(tenant), corpus, documents)

    def list(self, tenant: str | None = None) -> Infos:
        """Return what lives, by tenant (None: all of them) and age.

        Raises:
            CorpusError: the tenant's manifest is torn or foreign.  With None such tenants are left out, and logged.
        """
        if tenant is not None:
            return self._tenant(tenant).infos()
        return [info for infos in self._of_all(Tenant.infos) for info in infos]

    def merge(self, tenant: str | None = None, *, whole: bool = False) -> Merged:
        """Write small segments, and those with much that was removed, anew as few; serving goes on meanwhile.

        Args:
            tenant: whose; None: everybody's.
            whole: bring all of a tenant into one segment, or as few as their limit allows, without anything removed.

        Raises:
            CorpusError: a segment is torn, or the disk full; nothing was changed then, or by the merges before only.
                With `tenant` None that is logged, and the others are merged.
        """

        def merged(one: Tenant) -> Merged:
            return merge(one, self._segment_tokens, whole=whole)

        if tenant is not None:
            return merged(self._tenant(tenant))
        done = self._of_all(merged)
        return Merged(sum(one.read for one in done), sum(one.written for one in done))

    def verify(self, progress: Progress | None = None) -> Problems:
        """Read all of the store, and return what is wrong with it.

        Args:
            progress: called with the segments that are done and how many there are.
        """
        problems: Problems = []
        found: Found = []
        for folder in self._folders(problems):
            one = self._in(folder)
            try:
                found += [(one, entry) for entry in one.manifest().entries]
            except SpecplugError as error:
                problems.append(Problem(str(folder / MANIFEST_FILE), str(error)))
        for done, (one, entry) in enumerate(found):
            problems += problems_with(one, entry)
            if progress is not None:
                progress(done + 1, len(found))
        return problems

    def document(self, name: str, *, corpus: str | None = None, tenant: str = "") -> Tokens:
        """Return the tokens of a document's body, [n] int32, read-only; of several with this name the newest.

        Args:
            name: its name.
            corpus: whose document; None: any of the tenant's.

        Raises:
            CorpusError: there is no such corpus or document.
        """
        one = self._tenant(tenant)
        return one.reading(lambda manifest: newest_document(one, manifest, name, corpus))

    def _tenant(self, name: str) -> Tenant:
        return Tenant.named(self.root, name, self.tokenizer, self._lock_seconds)

    def _in(self, folder: Path) -> Tenant:
        return Tenant(folder, self.tokenizer, self._lock_seconds)

    def _folders(self, problems: Problems) -> Iterator[Path]:
        try:
            yield from folders(self.root)
        except OSError as error:
            problems.append(Problem(str(self.root / TENANTS), error.strerror or str(error)))

    def _of_all(self, ask: Callable[[Tenant], T]) -> Sequence[T]:
        problems: Problems = []
        reports = []
        for folder in self._folders(problems):
            try:
                reports.append(ask(self._in(folder)))
            except SpecplugError as error:
                problems.append(Problem(str(folder), str(error)))
        for problem in problems:
            _log.warning("corpus store: %s", problem.what)
        return reports
