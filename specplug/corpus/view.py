"""What a serving process sees of a store: all that lives, as it was when it last looked.  Nothing is written."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from specplug.corpus.identity import read_store
from specplug.corpus.layout import MANIFEST_FILE, TENANTS
from specplug.corpus.manifest import Entry, Mask, load
from specplug.corpus.segment import Segment
from specplug.corpus.tenant import folders, opened_entry
from specplug.errors import SpecplugError
from specplug.text.fingerprint import Fingerprint

_log = logging.getLogger("specplug")

_TRIES = 8


class LiveSegment(NamedTuple):
    """A segment with what lives of it.

    Attributes:
        segment: all of its documents.
        dead: [d] uint8, 1 where a document was removed; None: all live.
    """

    segment: Segment
    dead: Mask | None


class Snapshot(NamedTuple):
    """A store as it was at one moment.

    Attributes:
        generation: grows with each snapshot of a view.
        tenants: by name, each one's segments, older documents first; tenants that have none are left out.
        problems: what cannot be served, and why.
    """

    generation: int
    tenants: Mapping[str, tuple[LiveSegment, ...]]
    problems: tuple[str, ...]


class _Seen(NamedTuple):
    """What was found in a tenant's folder."""

    stamp: tuple[int, ...] | None
    name: str = ""
    live: tuple[tuple[Entry, LiveSegment], ...] = ()
    problems: tuple[str, ...] = ()


class View:
    """Looks at a store again and again; keeps open what it has seen, so that only what is new is opened.

    Attributes:
        snapshot: the newest one; replaced by `refresh`.
    """

    def __init__(self, root: str | os.PathLike[str], tokenizer: Fingerprint | None) -> None:
        """Look at a store for the first time.

        Args:
            root: its folder.
            tokenizer: what its tokens are to be of, None: any.

        Raises:
            CorpusError: it is no store, or one of another tokenizer.  Torn tenants and segments are `problems`.
        """
        self.root = Path(root)
        self.tokenizer = read_store(self.root, tokenizer)
        self._tenants: dict[Path, _Seen] = {}
        self._logged: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self.snapshot = Snapshot(0, MappingProxyType({}), ())
        self.refresh()

    def refresh(self) -> Snapshot | None:
        """Look again, on any thread; return what there is now, None if that is what there was.

        Takes one stat a tenant where nothing changed.  Never raises because of what is in the store.
        """
        with self._looking:
            before = self.snapshot
            lost: tuple[str, ...] = ()
            try:
                found = folders(self.root)
            except OSError as error:  # as when a network file system is away: what is open still serves
                found, lost = list(self._tenants), (f"{self.root / TENANTS}: {error.strerror}",)
            self._tenants = {folder: self._look(folder, self._tenants.get(folder)) for folder in found}
            problems = lost + tuple(problem for seen in self._tenants.values() for problem in seen.problems)
            tenants = {seen.name: tuple(live for _, live in seen.live) for seen in self._tenants.values() if seen.live}
            self._log(problems)
            if problems == before.problems and _same(tenants, before.tenants):
                return None
            self.snapshot = Snapshot(before.generation + 1, MappingProxyType(tenants), problems)
            return self.snapshot

    def _look(self, folder: Path, before: _Seen | None) -> _Seen:
        """Return what is in a folder now: `before` itself if it did not change and had no problems."""
        seen = before or _Seen(None)
        for _ in range(_TRIES):
            try:
                stamp = _stamp(folder)
            except OSError as error:
                return seen._replace(problems=(f"{folder / MANIFEST_FILE}: {error.strerror}",))
            if seen is before and stamp == seen.stamp and not seen.problems:
                break
            seen = self._read(folder, stamp, seen)
            if not seen.problems or seen.stamp == _stamp_or_none(folder):
                break  # else a segment may be gone because a merge deleted it
        return seen

    def _read(self, folder: Path, stamp: tuple[int, ...] | None, before: _Seen) -> _Seen:
        try:
            manifest = load(folder)
        except Exception as error:
            return _Seen(stamp, problems=(_problem(folder / MANIFEST_FILE, error),))
        opened = {entry.file: (entry, live) for entry, live in before.live}
        found, problems = [], []
        for entry in manifest.entries:
            try:
                found.append((entry, self._live(folder, entry, opened.get(entry.file))))
            except Exception as error:  # one segment's alone, whatever it is
                problems.append(_problem(folder / entry.file, error))
        return _Seen(stamp, manifest.tenant, tuple(found), tuple(problems))

    def _live(self, folder: Path, entry: Entry, opened: tuple[Entry, LiveSegment] | None) -> LiveSegment:
        if opened is not None and opened[0] == entry:
            return opened[1]
        segment = opened[1].segment if opened else opened_entry(folder, entry, self.tokenizer, readahead=True)
        return LiveSegment(segment, entry.dead(segment.corpora, segment.corpus_of))

    def _log(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._logged:
                _log.warning("corpus store: %s", problem)
        self._logged = frozenset(problems)


def _problem(path: Path, error: Exception) -> str:
    """Return what is wrong with a file; what is no error of ours names neither the file nor what it means."""
    text = str(error) if isinstance(error, SpecplugError) else f"{type(error).__name__}: {error}"
    return text if str(path) in text else f"{path}: {text}"


def _stamp(folder: Path) -> tuple[int, ...] | None:
    """Return what differs for each manifest that was ever in place; None where none is."""
    try:
        about = (folder / MANIFEST_FILE).lstat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _stamp_or_none(folder: Path) -> tuple[int, ...] | None:
    try:
        return _stamp(folder)
    except OSError:
        return None


def _same(one: Mapping[str, tuple[LiveSegment, ...]], other: Mapping[str, tuple[LiveSegment, ...]]) -> bool:
    """Say whether all segments are the same objects: their arrays are not to be compared."""
    return {name: [*map(id, live)] for name, live in one.items()} == {
        name: [*map(id, live)] for name, live in other.items()
    }
