"""A tenant's manifest: its segments, and the documents removed from them.  Replacing it commits a change."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, TypeAdapter

from specplug.corpus.checks import CorpusName, Count, Generation, Offset, SegmentName, String, TenantName, parsed
from specplug.corpus.files import check_folder, open_file
from specplug.corpus.layout import (
    BEFORE_ENDING,
    BUILDING_ENDING,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    ROOM_FILE,
    SEGMENT_FILE,
)
from specplug.corpus.names import folder_name, shortened
from specplug.corpus.sealed import opened, sealed
from specplug.corpus.writing import fsync_folder, keep_room, os_errors_named, write_file
from specplug.errors import CorpusError

_LEAST_ROOM = 1 << 14  # bytes

Mask = npt.NDArray[np.uint8]


class Part(NamedTuple):
    """The live documents and tokens of a corpus in one segment."""

    corpus: CorpusName
    documents: Count
    tokens: Count


class Entry(NamedTuple):
    """One segment.

    Attributes:
        file: its name in the tenant's folder.
        size: size of the file in bytes.
        documents, tokens: documents in the file and tokens of their bodies, dead ones included.
        text: length of the file's text, re-tokenized prefixes and separators included.
        live: live documents and tokens, by corpus.
        dead_corpora: corpora of the file without live documents.
        dead_documents: a packed mask of the other removed documents, see `unpacked`; "" if there are none.
    """

    file: SegmentName
    size: Offset
    documents: Count
    tokens: Count
    text: Count
    live: Annotated[tuple[Part, ...], Field(min_length=1)]
    dead_corpora: tuple[CorpusName, ...] = ()
    dead_documents: String = ""

    @property
    def live_tokens(self) -> int:
        """Tokens of the bodies of live documents."""
        return sum(part.tokens for part in self.live)

    def dead(self, corpora: Sequence[str], corpus_of: npt.NDArray[np.int32]) -> Mask | None:
        """Return [d] uint8, 1 where a document was removed; None if all live.

        Args:
            corpora, corpus_of: arrays of the segment.

        Raises:
            CorpusError: `dead_documents` is not a mask of that many documents.
        """
        if not (self.dead_corpora or self.dead_documents):
            return None
        try:
            mask = unpacked(self.dead_documents, len(corpus_of))
        except ValueError as error:
            raise CorpusError.build(
                "a manifest that does not say which documents were removed",
                who=self.file,
                found=str(error),
                expected=f"a mask of {len(corpus_of)} documents",
                remedy="Remove its corpora and add them anew, or restore the manifest",
            ) from error
        gone = np.array([name in self.dead_corpora for name in corpora], np.uint8)
        return np.asarray(mask | gone[corpus_of])

    def without(
        self, dead: Mask, corpora: Sequence[str], corpus_of: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
    ) -> Entry:
        """Return the entry with `dead` as its removed documents.

        Args:
            dead: [d] uint8, 1 for all removed documents, including those removed before.
            corpora, corpus_of, lengths: arrays of the segment.
        """
        which = np.flatnonzero(dead == 0)
        owners = corpus_of[which]
        counts = np.bincount(owners, minlength=len(corpora)).tolist()
        tokens = np.bincount(owners, lengths[which], len(corpora)).tolist()
        live = tuple(Part(name, n, int(size)) for name, n, size in zip(corpora, counts, tokens, strict=True) if n)
        gone = tuple(name for name, n in zip(corpora, counts, strict=True) if not n)
        whole = np.array([name in gone for name in corpora], np.uint8)[corpus_of]
        return self._replace(live=live, dead_corpora=gone, dead_documents=packed(np.where(whole, np.uint8(0), dead)))


class Manifest(NamedTuple):
    """The contents of a tenant.

    Attributes:
        tenant: its name.
        generation: 0 if nothing was ever added; grows at each change.
        entries: its segments, older documents before newer ones.
        changed: modification time of the file in nanoseconds, different for each generation.
    """

    tenant: str
    generation: int = 0
    entries: tuple[Entry, ...] = ()
    changed: int = 0

    @property
    def tokens(self) -> int:
        """Number of live tokens."""
        return sum(entry.live_tokens for entry in self.entries)

    def corpora(self) -> list[str]:
        """Return the corpora with live documents, older ones first."""
        return list(dict.fromkeys(part.corpus for entry in self.entries for part in entry.live))

    def files(self) -> set[str]:
        """Return the names of all segments' files."""
        return {entry.file for entry in self.entries}


def load(folder: Path, tenant: str | None = None) -> Manifest:
    """Read a tenant's manifest.

    Args:
        folder: the tenant's folder.
        tenant: its name; None: the name in the manifest.

    Raises:
        CorpusError: the manifest cannot be read, is torn, or has a different format, version or tenant.
    """
    path = folder / MANIFEST_FILE
    try:
        check_folder(folder)
        while (read := _read(path)) is None:
            if _never_written(folder):
                return Manifest(tenant or "")
    except OSError as error:
        who = str(error.filename or path)
        raise CorpusError.build("a manifest cannot be read", who=who, found=error.strerror) from error
    data, changed = read
    saved = parsed(_SAVED, opened(data, MANIFEST_FORMAT, path), path, MANIFEST_FORMAT)
    manifest = Manifest(saved.tenant, saved.generation, saved.segments, changed)
    if folder_name(manifest.tenant) != folder.name or tenant not in (None, manifest.tenant):
        raise CorpusError.build("the manifest of another tenant", who=str(path), found=shortened(manifest.tenant))
    return manifest


def commit(folder: Path, before: Manifest, entries: Iterable[Entry]) -> Manifest:
    """Replace the manifest `before` by one with these entries; return it.  Call with the lock held.

    A file occupies room for the next manifest, so that corpora can be removed when the disk is full.

    Raises:
        CorpusError: it could not be written; `before` is still in place.
    """
    path, old = folder / MANIFEST_FILE, (folder / MANIFEST_FILE).with_suffix(BEFORE_ENDING)
    manifest = before._replace(generation=before.generation + 1, entries=tuple(entries))
    room = folder / ROOM_FILE if manifest.tokens < before.tokens else None
    with os_errors_named(path):
        fsync_folder(folder)  # the segments' names must be durable before the manifest's
        _set_aside(path, old)
        try:
            data = sealed(lambda head: _content(head, manifest), MANIFEST_FORMAT)
            write_file(path, [data], newer_than=before.changed, room=room)
            fsync_folder(folder)
        except BaseException:
            with suppress(OSError):
                os.replace(old, path) if before.generation else path.unlink()
            raise
        finally:
            with suppress(OSError):
                old.unlink()
            keep_room(folder / ROOM_FILE, max(_LEAST_ROOM, 2 * path.stat().st_size if path.exists() else 0))
    return manifest


def packed(mask: Mask) -> str:
    """Return a mask as a short string, "" if it is all zeros."""
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 1)).decode() if mask.any() else ""


def unpacked(text: str, size: int) -> Mask:
    """Return the mask that was `packed`, [size] uint8 of 0 and 1; raises ValueError if the text is not such a mask."""
    if not text:
        return np.zeros(size, np.uint8)
    reader, most = zlib.decompressobj(), (size + 7) // 8
    try:
        bits = reader.decompress(base64.b64decode(text, validate=True), most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(bits) != most or not reader.eof:
        raise ValueError(f"{len(bits)} bytes{'' if reader.eof else ' and more'} instead of {most}")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=size)


def _read(path: Path) -> tuple[bytes, int] | None:
    try:
        with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _never_written(folder: Path) -> bool:
    """Return whether nothing was ever committed there; False if a manifest has appeared since it was read.

    Raises:
        CorpusError: there are committed segments, and the manifest is missing.
    """
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return True
    segments = [own for name in names if (own := SEGMENT_FILE.fullmatch(name))]
    if all(f"{own[1]}{BUILDING_ENDING}" in names for own in segments):
        return True
    if not (folder / MANIFEST_FILE).exists():
        raise CorpusError.build(
            "the manifest is missing, though segments are there",
            who=str(folder),
            remedy="Restore it, or delete the folder and add its corpora anew",
        )
    return False


def _set_aside(path: Path, old: Path) -> None:
    """Give the manifest a second name, from which to restore it if the folder cannot be fsynced."""
    with suppress(FileNotFoundError):
        old.unlink()
    with suppress(OSError):  # no manifest yet, or a file system without links: then it cannot be restored
        os.link(path, old)


def _content(head: Any, manifest: Manifest) -> dict[str, Any]:
    return {
        **head,
        "tenant": manifest.tenant,
        "generation": manifest.generation,
        "segments": [
            {**entry._asdict(), "live": [part._asdict() for part in entry.live]} for entry in manifest.entries
        ],
    }


def _consistent(entry: Entry) -> Entry:
    """Return a segment's entry if its figures are consistent; raises ValueError otherwise."""
    names = [*(part.corpus for part in entry.live), *entry.dead_corpora]
    if len(set(names)) < len(names):
        raise ValueError("a corpus is named twice")
    documents, tokens = (sum(each) for each in list(zip(*entry.live, strict=True))[1:])
    if documents > entry.documents or tokens > entry.tokens:
        raise ValueError("more live tokens or documents than the file has")
    if entry.documents > entry.tokens or entry.tokens + entry.documents >= entry.text or entry.text * 4 > entry.size:
        raise ValueError("inconsistent sizes")
    return entry


def _once(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if len({entry.file for entry in entries}) < len(entries):
        raise ValueError("a segment is named twice")
    return entries


class _Saved(NamedTuple):
    """The content of the file."""

    checksum: String
    format: String
    version: String
    tenant: TenantName
    generation: Generation
    segments: Annotated[tuple[Annotated[Entry, AfterValidator(_consistent)], ...], AfterValidator(_once)]


_SAVED = TypeAdapter(_Saved)
