"""Full checks of a segment: its checksums, the invariants of its layout, and what its manifest says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specplug.corpus.building import Builder, documents_of
from specplug.corpus.files import checksum
from specplug.corpus.layout import NO_TEXT, SECTIONS
from specplug.corpus.manifest import SegmentEntry
from specplug.corpus.segment import LiveSegment, Segment
from specplug.corpus.status import Problem
from specplug.corpus.tenant import Tenant
from specplug.errors import CorpusError, SpecplugError

_PIECE = 1 << 17  # items checked at a time


def problems_with(tenant: Tenant, entry: SegmentEntry) -> list[Problem]:
    """Read a whole segment and return its problems; none if it was deleted meanwhile."""
    try:
        live = tenant.open(entry)
        check_sections(live.segment)
        broken = broken_invariants(live.segment, tenant.tokenizer.vocab_size)
        if not broken and replace(SegmentEntry.of(*live), dead_documents=entry.dead_documents) != entry:
            broken = ["not as many documents and tokens as its manifest says"]
    except SpecplugError as error:
        broken = [str(error)]
    if broken and not _is_named(tenant, entry):
        return []
    return [Problem(str(tenant.folder / entry.file), what) for what in broken]


def check_sections(segment: Segment) -> None:
    """Compare all checksums.

    Raises:
        CorpusError: the file has changed since it was written.
    """
    for name in SECTIONS:
        if checksum(getattr(segment, name)) != segment.checksums[name]:
            raise CorpusError.build(
                "a segment was altered since it was written",
                who=str(segment.path),
                found=f"another checksum of {name!r}",
                remedy="Remove its corpora and add them anew, or restore the file",
            )


def broken_invariants(segment: Segment, vocab_size: int) -> list[str]:
    """Return what differs from a segment that is built from the same documents.  Takes as long as building it.

    Args:
        segment: the segment, which is read as a whole.
        vocab_size: ids must be below this.
    """
    builder, text = Builder(), segment.text
    for at in range(0, text.size, _PIECE):
        if int(text[at : at + _PIECE].min()) < NO_TEXT or int(text[at : at + _PIECE].max()) >= vocab_size:
            return ["token ids beyond the vocabulary"]
    for document in documents_of(LiveSegment(segment, None)):
        if (document.texts[0] == NO_TEXT).any():
            return ["documents that are not closed"]
        if document.name.decode(errors="replace").encode() != document.name:
            return ["names that are not UTF-8"]
        builder.append(*document)
    return [
        f"another {name!r} than its documents give"
        for name, expected in builder.sections().items()
        if not np.array_equal(getattr(segment, name), expected)
    ]


def _is_named(tenant: Tenant, entry: SegmentEntry) -> bool:
    try:
        return entry.file in tenant.manifest().files()
    except CorpusError:
        return True
