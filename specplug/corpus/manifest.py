"""A tenant's manifest: the list of its segments.  Replacing it commits a change."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter

from specplug.corpus.files import check_folder, fsync_folder, os_errors_named, read_file, write_file
from specplug.corpus.names import check_name, folder_name, shortened
from specplug.corpus.sealed import MOST_SEGMENT_TOKENS, CorpusName, Offset, String, opened, parsed, sealed
from specplug.corpus.segment import SEGMENT_ENDING, Segment
from specplug.errors import CorpusError

MANIFEST_FORMAT = "specplug corpus manifest"
MANIFEST_FILE = "manifest.json"

_BEFORE_ENDING = ".old"


TenantName = Annotated[String, AfterValidator(lambda value: check_name("tenant", value, empty=True))]
SegmentName = Annotated[String, Field(pattern=r"^[0-9a-f]{16}-[0-9]{1,9}\.safetensors$")]  # none outside the folder
Generation = Annotated[int, Field(strict=True, ge=1, le=1 << 62)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_SEGMENT_TOKENS)]
"""A number of documents or tokens of one segment."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """The documents and tokens of a corpus in one segment."""

    corpus: CorpusName
    documents: Count
    tokens: Count


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment.

    Attributes:
        file: its name in the tenant's folder.
        size: size of the file in bytes.
        text: length of the file's text, re-tokenized prefixes and separators included.
        parts: its documents and their bodies' tokens, by corpus.
    """

    file: SegmentName
    size: Offset
    text: Count
    parts: Annotated[tuple[CorpusPart, ...], Field(min_length=1)]

    @classmethod
    def of(cls, segment: Segment) -> SegmentEntry:
        """Return a segment's entry."""
        size = len(segment.corpora)
        counts = np.bincount(segment.corpus_of, minlength=size).tolist()
        tokens = np.bincount(segment.corpus_of, segment.lengths, size).astype(int).tolist()
        parts = map(CorpusPart, segment.corpora, counts, tokens)
        return cls(segment.path.name, segment.size, segment.text.size, tuple(parts))

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(part.documents for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens of the documents' bodies."""
        return sum(part.tokens for part in self.parts)

    def has(self, corpus: str) -> bool:
        """Return whether it has documents of a corpus."""
        return any(part.corpus == corpus for part in self.parts)


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
        """Number of documents."""
        return sum(entry.documents for entry in self.segments)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(entry.tokens for entry in self.segments)

    def corpora(self) -> list[str]:
        """Return the names of the corpora, older ones first."""
        return list(dict.fromkeys(part.corpus for entry in self.segments for part in entry.parts))

    def files(self) -> set[str]:
        """Return the names of all segments' files."""
        return {entry.file for entry in self.segments}


_MANIFEST = TypeAdapter(Manifest)


def load(folder: Path, tenant: str | None = None) -> Manifest:
    """Read the manifest in a tenant's folder; without `tenant`, whatever name it has.

    One that cannot be read, is torn, missing or foreign, or is of another version or tenant, raises CorpusError.
    """
    path = folder / MANIFEST_FILE
    has_segments = any(folder.glob(f"*{SEGMENT_ENDING}"))  # the manifest is written before the first one
    try:
        check_folder(folder)
        data, changed = read_file(path)
    except FileNotFoundError as error:
        if not has_segments:
            return Manifest(tenant or "")
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
    """Replace the manifest `before` by one with these entries; return it.  Call within the tenant's lock.

    If it cannot be written, CorpusError is raised, and `before` is still in place.
    """
    path = folder / MANIFEST_FILE
    old = path.with_suffix(_BEFORE_ENDING)  # a second name, from which to restore it if the folder cannot be fsynced
    manifest = replace(before, generation=before.generation + 1, segments=tuple(entries))
    with os_errors_named(path):
        fsync_folder(folder)  # the segments' names must be durable before the manifest's
        with suppress(FileNotFoundError):
            old.unlink()
        with suppress(OSError):  # no manifest yet, or a file system without links: then it cannot be restored
            os.link(path, old)
        try:
            data = sealed(lambda head: {**head, **_MANIFEST.dump_python(manifest)}, MANIFEST_FORMAT)
            write_file(path, [data], newer_than=before.changed)
            fsync_folder(folder)
        except BaseException:
            with suppress(OSError):
                os.replace(old, path) if before.generation else path.unlink()
            raise
        finally:
            with suppress(OSError):
                old.unlink()
    return manifest
