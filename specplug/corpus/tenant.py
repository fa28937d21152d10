"""A tenant's folder: reading its contents, and changing them exclusively."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from specplug.corpus.files import check_folder, make_folder
from specplug.corpus.layout import LOCK_FILE, MERGE_LOCK_FILE, TENANTS
from specplug.corpus.locking import clean, held
from specplug.corpus.manifest import Entry, Manifest, commit, load
from specplug.corpus.names import check_name, folder_name
from specplug.corpus.segment import Segment
from specplug.corpus.status import CorpusInfo
from specplug.corpus.writing import fsync_folder, os_errors_named
from specplug.errors import CorpusError
from specplug.text.fingerprint import Fingerprint

T = TypeVar("T")

_TRIES = 8


class Tenant:
    """One tenant of a store.

    Args:
        folder: its folder.
        tokenizer: the store's tokenizer.
        lock_seconds: how long to wait for another process that changes it.
        name: its name; None: the name in its manifest.
    """

    def __init__(self, folder: Path, tokenizer: Fingerprint, lock_seconds: float, name: str | None = None) -> None:
        self.folder, self.tokenizer, self._lock_seconds, self._name = folder, tokenizer, lock_seconds, name

    @classmethod
    def named(cls, root: Path, name: str, tokenizer: Fingerprint, lock_seconds: float) -> Tenant:
        """Return the tenant with a name, even if it does not exist yet.

        Raises:
            CorpusError: the name is invalid.
        """
        folder = root / TENANTS / folder_name(check_name("tenant", name, empty=True))
        return cls(folder, tokenizer, lock_seconds, name)

    def manifest(self) -> Manifest:
        """Return its current manifest; raises CorpusError as `manifest.load` does."""
        return load(self.folder, self._name)

    def segment(self, entry: Entry) -> Segment:
        """Open a segment; raises CorpusError as `Segment` does."""
        return opened_entry(self.folder, entry, self.tokenizer)

    def reading(self, read: Callable[[Manifest], T]) -> T:
        """Return the result of `read` on the manifest; retry if segments disappeared meanwhile, as merged ones do."""
        for _ in range(_TRIES):
            manifest = self.manifest()
            try:
                return read(manifest)
            except CorpusError:
                if self.manifest().generation == manifest.generation:
                    raise
        return read(self.manifest())

    def prepare(self) -> None:
        """Create its folder."""
        with os_errors_named(self.folder):
            if not os.path.lexists(self.folder):
                make_folder(self.folder.parent)
                make_folder(self.folder)
                fsync_folder(self.folder.parent)
            check_folder(self.folder)

    @contextmanager
    def alone(self) -> Iterator[Manifest]:
        """Hold the lock for changes; yields the manifest.  Raises CorpusError if the lock takes too long to get."""
        with held(self.folder / LOCK_FILE, self._lock_seconds):
            yield self.manifest()

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Hold the lock for merging its segments."""
        with held(self.folder / MERGE_LOCK_FILE, self._lock_seconds):
            yield

    def commit(self, before: Manifest, entries: Iterable[Entry]) -> None:
        """Commit these segments and delete those that are no longer used.  Call it within `alone`."""
        manifest = commit(self.folder, before, entries)
        clean(self.folder, manifest.files())

    def infos(self) -> list[CorpusInfo]:
        """Return the live corpora, one entry each, older ones first."""
        manifest = self.manifest()
        counts: dict[str, list[float]] = {name: [0, 0, 0] for name in manifest.corpora()}
        for entry in manifest.entries:
            for part in entry.live:
                share = entry.size * part.tokens / max(entry.tokens, 1)
                for at, more in enumerate((part.documents, part.tokens, share)):
                    counts[part.corpus][at] += more
        return [
            CorpusInfo(manifest.tenant, name, int(documents), int(tokens), round(size))
            for name, (documents, tokens, size) in counts.items()
        ]


def opened_entry(folder: Path, entry: Entry, tokenizer: Fingerprint | None, *, readahead: bool = False) -> Segment:
    """Open the segment that a manifest names.

    Raises:
        CorpusError: as `Segment` does, or the segment does not match the manifest.
    """
    segment = Segment(folder / entry.file, tokenizer, readahead=readahead)
    known = {part.corpus for part in entry.live} | set(entry.dead_corpora)
    found = (len(segment), segment.size, segment.text.size, set(segment.corpora))
    if found != (entry.documents, entry.size, entry.text, known):
        raise CorpusError.build(
            "a segment is not the one that its manifest means",
            who=str(segment.path),
            found=f"{len(segment)} documents, {segment.size} bytes",
            expected=f"{entry.documents} documents, {entry.size} bytes",
        )
    return segment


def folders(root: Path) -> list[Path]:
    """Return the folders of all tenants, including links, sorted by name; raises OSError."""
    check_folder(root / TENANTS)
    with os.scandir(root / TENANTS) as found:
        named = [entry for entry in found if entry.name[:2] in ("t-", "l-")]
        return sorted(Path(entry.path) for entry in named if entry.is_dir() or entry.is_symlink())
