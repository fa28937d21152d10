"""A tenant's manifest: its segments, and the documents removed from them.  Replacing it commits a change."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, TypeAdapter

from specplug.corpus.files import check_folder, fsync_folder, keep_room, os_errors_named, read_file, write_file
from specplug.corpus.names import check_name, folder_name, shortened
from specplug.corpus.sealed import MOST_SEGMENT_TOKENS, CorpusName, Offset, String, opened, parsed, sealed
from specplug.corpus.segment import SEGMENT_ENDING, LiveSegment, Mask, Segment
from specplug.errors import CorpusError

MANIFEST_FORMAT, MANIFEST_FILE, ROOM_FILE = "specplug corpus manifest", "manifest.json", "room"

_BEFORE_ENDING = ".old"
_LEAST_ROOM = 1 << 14  # bytes


TenantName = Annotated[String, AfterValidator(lambda value: check_name("tenant", value, empty=True))]
SegmentName = Annotated[String, Field(pattern=r"^[0-9a-f]{16}-[0-9]{1,9}\.safetensors$")]  # none outside the folder
Generation = Annotated[int, Field(strict=True, ge=1, le=1 << 62)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_SEGMENT_TOKENS)]
"""A number of documents or tokens of one segment."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """The live documents and tokens of a corpus in one segment."""

    corpus: CorpusName
    documents: Count
    tokens: Count


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment.

    Attributes:
        file: its name in the tenant's folder.
        size: size of the file in bytes.
        documents, tokens: documents in the file and tokens of their bodies, dead ones included.
        text: length of the file's text, re-tokenized prefixes and separators included.
        live: live documents and tokens, by corpus; all documents of the file's other corpora were removed.
        dead_documents: a packed mask of removed documents, see `unpacked`; "" if there are none.
    """

    file: SegmentName
    size: Offset
    documents: Count
    tokens: Count
    text: Count
    live: Annotated[tuple[CorpusPart, ...], Field(min_length=1)]
    dead_documents: String = ""

    @classmethod
    def of(cls, segment: Segment, dead: Mask | None = None) -> SegmentEntry:
        """Return a segment's entry; `dead` is [d] uint8, 1 for removed documents.  If all are, `live` is empty."""
        lives = np.ones(len(segment), bool) if dead is None else dead == 0
        owners, size = segment.corpus_of[lives], len(segment.corpora)
        counts = np.bincount(owners, minlength=size).tolist()
        tokens = np.bincount(owners, segment.lengths[lives], size).tolist()
        live = tuple(
            CorpusPart(*part) for part in zip(segment.corpora, counts, map(int, tokens), strict=True) if part[1]
        )
        removed = ~lives & (np.array(counts) > 0)[segment.corpus_of]
        all_tokens = int(segment.lengths.sum())
        return cls(segment.path.name, segment.size, len(segment), all_tokens, segment.text.size, live, packed(removed))

    @property
    def live_tokens(self) -> int:
        """Tokens of the bodies of live documents."""
        return sum(part.tokens for part in self.live)

    def has(self, corpus: str) -> bool:
        """Return whether documents of a corpus are live."""
        return any(part.corpus == corpus for part in self.live)

    def applied_to(self, segment: Segment) -> LiveSegment:
        """Return the segment with a mask of its removed documents.

        Raises:
            CorpusError: `dead_documents` is not a mask of that many documents.
        """
        try:
            mask = unpacked(self.dead_documents, len(segment))
        except ValueError as error:
            raise CorpusError.build(
                "a manifest that does not say which documents were removed",
                who=self.file,
                found=str(error),
                expected=f"a mask of {len(segment)} documents",
                remedy="Remove its corpora and add them anew, or restore the manifest",
            ) from error
        mask |= np.array([not self.has(name) for name in segment.corpora], np.uint8)[segment.corpus_of]
        return LiveSegment(segment, mask if mask.any() else None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a tenant.

    Attributes:
        tenant: its name.
        generation: 0 if the tenant does not exist; grows at each change.
        segments: its segments, older documents before newer ones.
        changed: modification time of the file in nanoseconds, different for each generation.
    """

    tenant: TenantName
    generation: Generation = 0
    segments: tuple[SegmentEntry, ...] = ()
    changed: Annotated[int, Field(exclude=True)] = 0

    @property
    def documents(self) -> int:
        """Number of live documents."""
        return sum(part.documents for entry in self.segments for part in entry.live)

    @property
    def tokens(self) -> int:
        """Number of live tokens."""
        return sum(entry.live_tokens for entry in self.segments)

    def corpora(self) -> list[str]:
        """Return the corpora with live documents, older ones first."""
        return list(dict.fromkeys(part.corpus for entry in self.segments for part in entry.live))

    def files(self) -> set[str]:
        """Return the names of all segments' files."""
        return {entry.file for entry in self.segments}


_MANIFEST = TypeAdapter(Manifest)


def load(folder: Path, tenant: str | None = None) -> Manifest:
    """Read the manifest in a tenant's folder; without `tenant`, whatever name it has.

    Raises:
        CorpusError: the manifest cannot be read, is torn or missing, or has a different format, version or tenant.
    """
    path = folder / MANIFEST_FILE
    try:
        check_folder(folder)
        try:
            data, changed = read_file(path)
        except FileNotFoundError:
            if not any(folder.glob(f"*{SEGMENT_ENDING}")):
                return Manifest(tenant or "")
            data, changed = read_file(path)  # a tenant's manifest is written before its first segment
    except FileNotFoundError as error:
        remedy = "Restore it, or delete the folder and add its corpora anew"
        what = "the manifest is missing, though segments are there"
        raise CorpusError.build(what, who=str(folder), remedy=remedy) from error
    except OSError as error:
        who = str(error.filename or path)
        raise CorpusError.build("a manifest cannot be read", who=who, found=error.strerror) from error
    manifest = replace(parsed(_MANIFEST, opened(data, MANIFEST_FORMAT, path), path, MANIFEST_FORMAT), changed=changed)
    if folder_name(manifest.tenant) != folder.name or tenant not in (None, manifest.tenant):
        raise CorpusError.build("the manifest of another tenant", who=str(path), found=shortened(manifest.tenant))
    return manifest


def commit(folder: Path, before: Manifest, entries: Iterable[SegmentEntry]) -> Manifest:
    """Replace the manifest `before` by one with these entries; return it.  Call with the lock held.

    A file occupies room for the next manifest, so that corpora can be removed when the disk is full.

    Raises:
        CorpusError: it could not be written; `before` is still in place.
    """
    path, old = folder / MANIFEST_FILE, (folder / MANIFEST_FILE).with_suffix(_BEFORE_ENDING)
    manifest = replace(before, generation=before.generation + 1, segments=tuple(entries))
    room = folder / ROOM_FILE if manifest.tokens < before.tokens else None
    with os_errors_named(path):
        fsync_folder(folder)  # the segments' names must be durable before the manifest's
        _set_aside(path, old)
        try:
            data = sealed(lambda head: {**head, **_MANIFEST.dump_python(manifest)}, MANIFEST_FORMAT)
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


def packed(mask: Mask | npt.NDArray[np.bool_]) -> str:
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


def _set_aside(path: Path, old: Path) -> None:
    """Give the manifest a second name, from which to restore it if the folder cannot be fsynced."""
    with suppress(FileNotFoundError):
        old.unlink()
    with suppress(OSError):  # no manifest yet, or a file system without links: then it cannot be restored
        os.link(path, old)
