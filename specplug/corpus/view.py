"""A serving process's read-only view of a store: all documents as of the last refresh."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from specplug.corpus.manifest import MANIFEST_FILE, SegmentEntry
from specplug.corpus.segment import Segment
from specplug.corpus.store import read_store
from specplug.corpus.tenant import TENANTS, Tenant, folders
from specplug.errors import SpecplugError, describe
from specplug.text.fingerprint import Fingerprint

_log = logging.getLogger("specplug")

_TRIES = 8


class Snapshot(NamedTuple):
    """The state of a store at one moment.

    Attributes:
        generation: grows with each snapshot of a view.
        tenants: the segments of each tenant by name, older documents first; tenants without segments are omitted.
        problems: descriptions of the parts that cannot be served.
    """

    generation: int
    tenants: Mapping[str, tuple[Segment, ...]]
    problems: tuple[str, ...]


class _SeenTenant(NamedTuple):
    """The contents of a tenant's folder at the last refresh."""

    stamp: tuple[int, ...] | None = ()
    name: str = ""
    segments: tuple[tuple[SegmentEntry, Segment], ...] = ()
    problems: tuple[str, ...] = ()


class View:
    """A view whose `snapshot` can be refreshed; it keeps segments open, so that only new ones are opened."""

    def __init__(self, root: str | os.PathLike[str], tokenizer: Fingerprint | None, *, readahead: bool = True) -> None:
        """Open a store and read its first snapshot.  Torn tenants and segments are `problems`.

        `readahead` asks the system to read segments into memory.
        What is no store, or one of another tokenizer, raises CorpusError.
        """
        self.root = Path(root)
        self.tokenizer = read_store(self.root, tokenizer)
        self._readahead = readahead
        self._tenants: dict[Path, _SeenTenant] = {}
        self._logged: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self.snapshot = Snapshot(0, MappingProxyType({}), ())
        self.refresh()

    def refresh(self) -> Snapshot | None:
        """Read the store again, on any thread; return the new snapshot, None if nothing changed.

        Takes one stat per unchanged tenant.  Never raises because of the store's contents.
        """
        with self._looking:
            before = self.snapshot
            lost: tuple[str, ...] = ()
            try:
                found = folders(self.root)
            except OSError as error:  # for example, a network file system is unavailable: open segments still serve
                found = list(self._tenants)
                lost = (f"{self.root / TENANTS}: {error.strerror}",)
            self._tenants = {folder: self._look(folder, self._tenants.get(folder)) for folder in found}
            problems = lost + tuple(problem for seen in self._tenants.values() for problem in seen.problems)
            tenants = {
                seen.name: tuple(segment for _, segment in seen.segments)
                for seen in self._tenants.values()
                if seen.segments
            }
            self._log(problems)
            if problems == before.problems and tenants == before.tenants:
                return None
            self.snapshot = Snapshot(before.generation + 1, MappingProxyType(tenants), problems)
            return self.snapshot

    def _look(self, folder: Path, before: _SeenTenant | None) -> _SeenTenant:
        """Return the current contents of a folder: `before` itself if it is unchanged and had no problems."""
        seen = before or _SeenTenant()
        for tries in range(_TRIES):
            try:
                stamp = _stamp(folder)
            except OSError as error:
                return seen._replace(problems=(f"{folder / MANIFEST_FILE}: {error.strerror}",))
            if stamp == seen.stamp and (tries or not seen.problems):
                break  # while it changes, a segment may be deleted
            seen = self._read(folder, stamp, seen)
        return seen

    def _read(self, folder: Path, stamp: tuple[int, ...] | None, before: _SeenTenant) -> _SeenTenant:
        tenant = Tenant(folder, self.tokenizer)
        try:
            manifest = tenant.manifest()
        except Exception as error:
            return _SeenTenant(stamp, problems=(_problem(folder / MANIFEST_FILE, error),))
        opened = dict(before.segments)
        found = []
        problems = []
        for entry in manifest.segments:
            try:
                segment = opened.get(entry) or tenant.open(entry, readahead=self._readahead)
                found.append((entry, segment))
            except Exception as error:  # any error affects only this segment
                problems.append(_problem(folder / entry.file, error))
        return _SeenTenant(stamp, manifest.tenant, tuple(found), tuple(problems))

    def _log(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._logged:
                _log.warning("corpus store: %s", problem)
        self._logged = frozenset(problems)


def _problem(path: Path, error: Exception) -> str:
    """Return the description of a problem with a file; errors of other libraries lack the file and the meaning."""
    text = str(error) if isinstance(error, SpecplugError) else describe(error)
    return text if str(path) in text else f"{path}: {text}"


def _stamp(folder: Path) -> tuple[int, ...] | None:
    """Return a stamp that differs for each version of the manifest; None if there is no manifest."""
    try:
        about = (folder / MANIFEST_FILE).lstat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
