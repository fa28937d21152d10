"""A segment: the documents of one immutable file in safetensors format, mapped into memory."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from specplug.corpus.documents import Tokens
from specplug.corpus.files import PIECE, checksum, open_file, write_file
from specplug.corpus.names import name_hash
from specplug.corpus.sealed import CorpusName, Offset, String, opened, parsed, sealed, torn
from specplug.errors import CorpusError, describe, quote
from specplug.text.fingerprint import Fingerprint

SEGMENT_FORMAT = "specplug corpus segment"
SEGMENT_ENDING = ".safetensors"

NO_TEXT = -1
"""The first and last entry of a text, and the separator after every document and prefix; as in `specplug.lookup`."""

COMPARED = 64
"""Number of tokens before a place that it is sorted by."""

SECTIONS = {
    "starts": "I64",
    "lengths": "I64",
    "name_ends": "I64",
    "name_hashes": "U64",
    "text": "I32",
    "places": "I32",
    "corpus_of": "I32",
    "name_order": "I32",
    "names": "U8",
}
"""A segment's arrays with safetensors' names of their types, in file order: wide types first, so that each is aligned.
With n tokens of text, m places, d documents and b bytes of names:

    starts       [d + 1]  document i's texts are text[starts[i] : starts[i + 1]]: its body, then its prefixes, each
                          with a `NO_TEXT` after it; starts[0] is 1 and starts[d] is n
    lengths      [d]      tokens of its body, at least 1
    name_ends    [d]      the end of its name in names; it starts at the end of the previous one
    name_hashes  [d]      `names.name_hash` of all names, sorted
    text         [n]      token ids, and `NO_TEXT`
    places       [m]      all p for which text[p - 1] and text[p] are tokens, sorted by the text before them read
                          backwards: text[p - 1], text[p - 2], ..., up to `COMPARED` tokens or a `NO_TEXT`, which is the
                          smallest; ties are sorted by p
    corpus_of    [d]      index into the corpora that the metadata names
    name_order   [d]      the document of each entry of name_hashes; equal hashes are sorted by document
    names        [b]      UTF-8
"""

DTYPES = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U8": "|u1"}

Sections = Mapping[str, npt.NDArray[np.generic]]

_ALIGNED = 64
_MAX_HEADER = 100_000_000  # safetensors does not read longer ones
_METADATA = "__metadata__"
_DOCUMENTS = 1 << 11  # checked at a time: their arrays are small, so that opening takes little memory


class _Section(NamedTuple):
    """A header's description of an array."""

    dtype: String
    shape: tuple[Offset]
    data_offsets: tuple[Offset, Offset]


_SECTIONS = TypeAdapter(dict[str, _Section])
_STRINGS = TypeAdapter(dict[str, String])
_CORPORA: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[CorpusName, ...])


def _layout(sizes: Mapping[str, int]) -> dict[str, _Section]:
    """Return the header's description of sections of these sizes."""
    found = {}
    end = 0
    for name, kind in SECTIONS.items():
        start = end
        end += sizes[name] * np.dtype(DTYPES[kind]).itemsize
        found[name] = _Section(kind, (sizes[name],), (start, end))
    return found


def write_segment(path: Path, sections: Sections, corpora: Sequence[str], tokenizer: Fingerprint) -> int:
    """Write a segment and fsync it; return the file's size in bytes.  Raises as `write_file`."""
    arrays = {name: np.ascontiguousarray(sections[name], DTYPES[kind]) for name, kind in SECTIONS.items()}
    about = {f"checksum {name}": checksum(array) for name, array in arrays.items()}
    about |= {"tokenizer": tokenizer.digest, "tokenizer_name": tokenizer.name, "corpora": json.dumps(list(corpora))}

    described = {name: it._asdict() for name, it in _layout({name: it.size for name, it in arrays.items()}).items()}
    head = sealed(lambda head: {_METADATA: {**head, **about}, **described}, SEGMENT_FORMAT, align=_ALIGNED, after=8)
    return write_file(path, [len(head).to_bytes(8, "little"), head, *arrays.values()], read_only=True)


class Segment:
    """A segment's arrays, read-only and mapped: used pages are in memory, and all processes share them.

    The file may be deleted while it is open.

    Attributes:
        id, path: its id and its file.
        size: size of the file in bytes.
        corpora: names of its documents' corpora.
        checksums: the checksums that the file states, by section.
        starts, lengths, corpus_of, text, places, name_ends, name_hashes, name_order, names: see `SECTIONS`.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    name_ends: npt.NDArray[np.int64]
    name_hashes: npt.NDArray[np.uint64]
    text: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    corpus_of: npt.NDArray[np.int32]
    name_order: npt.NDArray[np.int32]
    names: npt.NDArray[np.uint8]

    def __init__(self, path: Path, tokenizer: Fingerprint | None = None, *, readahead: bool = False) -> None:
        """Open a segment; takes a millisecond, and some nanoseconds per document.  Does not read the text.

        With `readahead` the system is asked to read all of it into memory.  A file that cannot be read, is torn, or is
        of another format, version or tokenizer, raises CorpusError.
        """
        self.path = path
        self.id = path.name.removesuffix(SEGMENT_ENDING)
        try:
            handle = open_file(path, os.O_RDONLY)
            try:
                self._open(handle, tokenizer)
                if readahead:
                    _readahead(handle, self.size)
            finally:
                os.close(handle)
        except OSError as error:
            raise CorpusError.build("a segment cannot be read", who=str(path), found=error.strerror) from error

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.lengths.size

    def document(self, index: int) -> Tokens:
        """Return the tokens of a document's body, [n] int32, read-only."""
        start = self.starts[index]
        return self.text[start : start + self.lengths[index]]

    def name(self, index: int) -> str:
        """Return a document's name; bytes that are not UTF-8, as in a damaged file, are replaced."""
        return self.name_bytes(index).decode(errors="replace")

    def name_bytes(self, index: int) -> bytes:
        """Return a document's name, UTF-8."""
        return self.names[self.name_ends[index - 1] if index else 0 : self.name_ends[index]].tobytes()

    def find(self, name: str, corpus: str | None = None) -> list[int]:
        """Return the documents with a name, in the order of the segment; with `corpus`, only those of that corpus."""
        data = name.encode(errors="surrogatepass")  # no document has a name that is not Unicode
        wanted = np.uint64(name_hash(data))
        first, end = (int(np.searchsorted(self.name_hashes, wanted, side)) for side in ("left", "right"))  # type: ignore[call-overload]
        found = (int(index) for index in self.name_order[first:end])
        return [
            index
            for index in found
            if self.name_bytes(index) == data and corpus in (None, self.corpora[self.corpus_of[index]])
        ]

    def _open(self, handle: int, tokenizer: Fingerprint | None) -> None:
        self.size = os.fstat(handle).st_size
        start = int.from_bytes(os.pread(handle, 8, 0), "little") + 8
        if not 8 < start <= min(self.size, _MAX_HEADER):
            raise torn(self.path, SEGMENT_FORMAT, f"{self.size} bytes with a header of {start - 8}")
        if start % 8:
            raise torn(self.path, SEGMENT_FORMAT, f"arrays that begin at byte {start}")
        content = opened(os.pread(handle, start - 8, 8), SEGMENT_FORMAT, self.path, within=_METADATA)
        metadata = parsed(_STRINGS, content.pop(_METADATA), self.path, SEGMENT_FORMAT)
        sections = parsed(_SECTIONS, content, self.path, SEGMENT_FORMAT)
        self._map(handle, start, sections)
        self._describe(metadata, tokenizer)
        if fault := self._fault():
            raise torn(self.path, SEGMENT_FORMAT, fault)

    def _map(self, handle: int, start: int, sections: Mapping[str, _Section]) -> None:
        if missing := [name for name in SECTIONS if name not in sections]:
            raise torn(self.path, SEGMENT_FORMAT, f"no section {missing[0]!r}")
        expected = _layout({name: sections[name].shape[0] for name in SECTIONS})
        if wrong := [name for name in SECTIONS if sections[name] != expected[name]]:
            raise torn(self.path, SEGMENT_FORMAT, f"a misplaced section {wrong[0]!r}")
        end = start + expected[[*SECTIONS][-1]].data_offsets[1]
        if end != self.size:
            raise torn(self.path, SEGMENT_FORMAT, f"{self.size} bytes instead of {end}")
        mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        for name, (kind, (size,), (first, _)) in expected.items():
            setattr(self, name, np.frombuffer(mapped, DTYPES[kind], size, start + first))

    def _describe(self, metadata: Mapping[str, str], tokenizer: Fingerprint | None) -> None:
        try:
            self.corpora = parsed(_CORPORA, json.loads(metadata["corpora"]), self.path, SEGMENT_FORMAT)
            self.checksums = {name: metadata[f"checksum {name}"] for name in SECTIONS}
            digest = metadata["tokenizer"]
            name = metadata["tokenizer_name"]
        except (KeyError, ValueError, RecursionError) as error:
            raise torn(self.path, SEGMENT_FORMAT, describe(error)) from error
        if len(set(self.corpora)) < len(self.corpora):
            raise torn(self.path, SEGMENT_FORMAT, "a corpus that is named twice")
        if tokenizer is not None and digest != tokenizer.digest:
            raise CorpusError.build(
                "a segment of another tokenizer",
                who=str(self.path),
                found=f"{quote(name)} ({digest[:64]})",
                expected=f"{tokenizer.name!r} ({tokenizer.digest})",
            )

    def _fault(self) -> str | None:
        """Return what is wrong with the arrays' sizes, or with a number that would lead out of the file.

        Other numbers are clamped where they are used.  Reads about 36 bytes of each document, and no text.
        """
        d = self.lengths.size
        n = self.text.size
        sizes = [self.starts.size - 1, self.name_ends.size, self.name_hashes.size, self.corpus_of.size]
        if not d or any(size != d for size in [*sizes, self.name_order.size]):
            return f"sections for {d} and {sizes} documents"
        if n < 3 or self.places.size > n - 2:
            return f"{self.places.size} places in a text of {n}"
        if (self.text[0], self.text[-1]) != (NO_TEXT, NO_TEXT):
            return f"a text from {self.text[0]} to {self.text[-1]}"
        if (self.starts[0], self.starts[-1], self.name_ends[-1]) != (1, n, self.names.size):
            return "documents that do not fill the text"
        return next(filter(None, map(self._fault_from, range(0, d, _DOCUMENTS))), None)

    def _fault_from(self, at: int) -> str | None:
        """Return what is wrong with the numbers of the next `_DOCUMENTS` documents from one on."""
        end = min(at + _DOCUMENTS, len(self))
        starts = self.starts[at : end + 1]
        ends = self.name_ends[max(at - 1, 0) : end]
        room = np.diff(starts) - self.lengths[at:end]
        checks = {
            "documents or names that begin elsewhere than in the file": (
                _within(starts, 1, self.text.size + 1) and _within(ends, 1, self.names.size + 1)
            ),
            "documents that are empty, out of order, or longer than their place": (
                _within(self.lengths[at:end], 1, self.text.size) and room.min() > 0
            ),
            "names that are empty or out of order": (np.diff(ends) > 0).all(),
            "documents of no corpus": _within(self.corpus_of[at:end], 0, len(self.corpora)),
            "names of no document": _within(self.name_order[at:end], 0, len(self)),
        }
        return next((fault for fault, is_right in checks.items() if not is_right), None)


def _within(numbers: npt.NDArray[Any], least: int, end: int) -> bool:
    return bool(numbers.min() >= least and numbers.max() < end)


def _readahead(handle: int, size: int) -> None:
    """Request that a file be read into the page cache, without waiting for it."""
    with suppress(OSError, AttributeError):  # AttributeError: systems without this call
        for start in range(0, size, PIECE):
            os.posix_fadvise(handle, start, PIECE, os.POSIX_FADV_WILLNEED)


def check_sections(segment: Segment) -> None:
    """Compare all checksums; raises CorpusError if the file has changed since it was written."""
    for name in SECTIONS:
        if checksum(getattr(segment, name)) != segment.checksums[name]:
            raise CorpusError.build(
                "a segment was altered since it was written",
                who=str(segment.path),
                found=f"another checksum of {name!r}",
                remedy="Remove its corpora and add them anew, or restore the file",
            )
