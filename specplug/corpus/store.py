"""The corpus store: a folder of documents' tokens per tenant, which processes share, change and draft from.

    root/store.json                             the tokenizer of the store
    root/tenants/<tenant>/manifest.json         the tenant's segments: `manifest`
    root/tenants/<tenant>/<id>.safetensors      a segment: `segment`
    root/tenants/<tenant>/lock                  the lock of the process that changes the tenant: `tenant`

A segment never changes.  Each change writes new ones and replaces the manifest, so it is atomic even if its process
dies; the next change of the tenant deletes the files that such a process left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter

from specplug.corpus.adding import Added, Addition, Progress, Synced
from specplug.corpus.documents import Document, Tokens
from specplug.corpus.files import fsync_folder, locked, make_folder, os_errors_named, read_file, write_file
from specplug.corpus.inspecting import Problem, problems_with
from specplug.corpus.manifest import MANIFEST_FILE, SegmentEntry
from specplug.corpus.names import check_name, folder_name
from specplug.corpus.removing import Removed, remove_corpus, remove_documents
from specplug.corpus.sealed import MOST_SEGMENT_TOKENS, opened, parsed, sealed
from specplug.corpus.tenant import TENANTS, CorpusInfo, Tenant, folders
from specplug.corpus.writing import LOCK_FILE
from specplug.errors import CorpusError, SpecplugError
from specplug.text.fingerprint import Fingerprint

STORE_FORMAT = "specplug corpus store"
STORE_FILE = "store.json"

SEGMENT_TOKENS = 64 << 20
"""The maximum text of one segment, in tokens; building one takes about 16 bytes of memory per token."""

LOCK_SECONDS = 60.0
"""Seconds to wait for another process that changes the same tenant."""

# Inside the class, `list` is a method.
Infos: TypeAlias = list[CorpusInfo]
Problems: TypeAlias = list[Problem]
Found: TypeAlias = list[tuple[Tenant, SegmentEntry]]

_TOKENIZER = TypeAdapter(Fingerprint)

_log = logging.getLogger("specplug")


class Store:
    """A corpus store that can be changed; processes that only draft from one use `view.View`.

    It keeps no files open and no state: each call reads the files, so threads and processes may share a store freely.

    Attributes:
        root: its folder.
        tokenizer: the tokenizer of its tokens.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        tokenizer: Fingerprint | None = None,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Open a store; `tokenizer`: the expected one, None: any.

        Args:
            root: its folder.
            segment_tokens: the maximum text of one segment, and so of one document; building takes 16 bytes per token.
            lock_seconds: how long to wait for another process that changes the same tenant.

        Raises:
            CorpusError: there is no store, it is torn or has a different version, or a different tokenizer; then the
                message names both tokenizers.
        """
        if not 4 <= segment_tokens <= MOST_SEGMENT_TOKENS:
            expected = f"4 to {MOST_SEGMENT_TOKENS}"
            raise CorpusError.build("a wrong size", who="segment_tokens", found=segment_tokens, expected=expected)
        self.root = Path(root)
        self.tokenizer = read_store(self.root, tokenizer)
        self._segment_tokens = segment_tokens
        self._lock_seconds = lock_seconds

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        tokenizer: Fingerprint,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> Store:
        """Create a store, or open an existing one with the same tokenizer.

        Raises:
            CorpusError: the folder is a store with a different tokenizer, or has other contents; or as for opening it.
        """
        _create(Path(root), tokenizer, lock_seconds)
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
        """Add a corpus; if this fails, nothing is added.

        Args:
            corpus: its name, 1 to 256 characters, which no corpus of this tenant has.
            documents: consumed one at a time; documents without tokens are skipped.  Names may repeat.
            tenant: its tenant; only this tenant's requests draft from it.
            extend: add to an existing corpus, skipping documents that it already has with identical content.
            max_tokens: the maximum number of tokens that the tenant may have afterwards; None: no limit.
            progress: called with the numbers of documents and tokens so far, after each document.

        Raises:
            CorpusError: a name or a document is invalid, there are too many tokens, the disk is full, or another
                process did not release the tenant.  Exceptions of `documents` propagate.
        """
        return Addition(self._tenant(tenant), corpus, max_tokens, progress).add(documents, extend=extend)

    def sync(
        self,
        corpus: str,
        documents: Iterable[Document],
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> Synced:
        """Replace a corpus's documents by these, atomically: readers see either the old ones or all of the new ones.

        Documents with the same name and identical content stay where they are; nothing is written for them.

        Args:
            corpus: its name; it need not exist.
            documents: all documents of the corpus, consumed one at a time.
            tenant, max_tokens: as in `add`.
            progress: called with the numbers of documents and tokens to be written so far.

        Raises:
            CorpusError: as `add`; or there are no documents.  Nothing is changed.
        """
        return Addition(self._tenant(tenant), corpus, max_tokens, progress).sync(documents)

    def remove(self, corpus: str, *, documents: Sequence[str] | None = None, tenant: str = "") -> Removed:
        """Remove a corpus, or all of its documents that have one of the names.

        Their segments are written anew without them, so the disk needs room for these, and no file has their text.  A
        damaged segment keeps it until the last of its corpora is removed; the log names it.

        Raises:
            CorpusError: there is no such corpus or document; nothing is removed.
        """
        one = self._tenant(tenant)
        return remove_corpus(one, corpus) if documents is None else remove_documents(one, corpus, documents)

    def list(self, tenant: str | None = None) -> Infos:
        """Return the corpora, sorted by tenant (None: all tenants) and age.

        Raises:
            CorpusError: the tenant's manifest is torn or foreign.  With None, such tenants are skipped and logged.
        """
        if tenant is not None:
            return self._tenant(tenant).infos()
        problems: Problems = []
        found: Infos = []
        for folder in self._folders(problems):
            try:
                found += self._in(folder).infos()
            except SpecplugError as error:
                problems.append(Problem(str(folder), str(error)))
        for problem in problems:
            _log.warning("corpus store: %s", problem.what)
        return found

    def verify(self, progress: Progress | None = None) -> Problems:
        """Read the whole store, and return its problems; `progress` takes the numbers of segments done and in all."""
        problems: Problems = []
        found: Found = []
        for folder in self._folders(problems):
            one = self._in(folder)
            try:
                found += [(one, entry) for entry in one.manifest().segments]
            except SpecplugError as error:
                problems.append(Problem(str(folder / MANIFEST_FILE), str(error)))
        for done, (one, entry) in enumerate(found):
            problems += problems_with(one, entry)
            if progress is not None:
                progress(done + 1, len(found))
        return problems

    def document(self, name: str, *, corpus: str | None = None, tenant: str = "") -> Tokens:
        """Return the tokens of a document's body, [n] int32, read-only; the newest, if several have this name.

        Without `corpus` it is looked up in all of the tenant's.

        Raises:
            CorpusError: there is no such corpus or document.
        """
        return self._tenant(tenant).newest_document(name, corpus)

    def _tenant(self, name: str) -> Tenant:
        """Return the tenant with a name, even if it does not exist yet."""
        folder = self.root / TENANTS / folder_name(check_name("tenant", name, empty=True))
        return self._in(folder, name)

    def _in(self, folder: Path, name: str | None = None) -> Tenant:
        return Tenant(folder, self.tokenizer, name, self._segment_tokens, self._lock_seconds)

    def _folders(self, problems: Problems) -> Iterator[Path]:
        try:
            yield from folders(self.root)
        except OSError as error:
            problems.append(Problem(str(self.root / TENANTS), error.strerror or str(error)))


def read_store(root: Path, tokenizer: Fingerprint | None) -> Fingerprint:
    """Return the tokenizer of a store, which its store.json names; that file marks a folder as a store.

    No store, a torn one, or one of another version or tokenizer raises CorpusError.
    """
    path = root / STORE_FILE
    try:
        data, _ = read_file(path)
    except OSError as error:
        raise CorpusError.build(
            "no corpus store",
            who=str(root),
            found=error.strerror,
            expected=f"a folder with a {STORE_FILE}",
            remedy="`specplug corpus build` makes one",
        ) from error
    found = parsed(_TOKENIZER, opened(data, STORE_FORMAT, path).get("tokenizer"), path, STORE_FORMAT)
    if tokenizer is not None and tokenizer.digest != found.digest:
        raise CorpusError.build(
            "the corpus store is of another tokenizer",
            who=str(root),
            found=f"{found.name!r} ({found.digest})",
            expected=f"{tokenizer.name!r} ({tokenizer.digest})",
            remedy="Build a store with the target's own tokenizer",
        )
    return found


def require_place(root: Path) -> None:
    """Refuse a place that has no store, and cannot become one because something else is there; a `CorpusError`.

    A place that this process may not write to is filled by another one, which the server waits for.
    """
    # Another process may be creating a store now, or was killed while doing so.
    ours = {STORE_FILE, LOCK_FILE, TENANTS, "store.tmp"}
    with os_errors_named(root):
        if (root / STORE_FILE).exists() or not root.exists() or not os.access(root, os.W_OK):
            return
        others = sorted(path.name for path in root.iterdir() if path.name not in ours) if root.is_dir() else ["a file"]
    if others:
        raise CorpusError.build(
            "a place with something else in it cannot become a corpus store",
            who=str(root),
            found=", ".join(others[:5]),
            expected="an empty folder, or none",
        )


def _create(root: Path, tokenizer: Fingerprint, lock_seconds: float) -> None:
    """Create a store; do nothing if one with the same tokenizer exists."""
    if (root / STORE_FILE).exists():
        read_store(root, tokenizer)
        return
    with os_errors_named(root):
        root.mkdir(0o700, parents=True, exist_ok=True)
        require_place(root)
        with locked(root / LOCK_FILE, lock_seconds):
            if (root / STORE_FILE).exists():
                read_store(root, tokenizer)
                return
            make_folder(root / TENANTS)
            data = sealed(lambda head: {**head, "tokenizer": tokenizer._asdict()}, STORE_FORMAT)
            write_file(root / STORE_FILE, [data])
            fsync_folder(root)
