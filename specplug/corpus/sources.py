"""Reading of operators' sources as documents: text files, folders, JSON lines."""

from __future__ import annotations

import os
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from specplug.corpus.lines import Content, Fields, contents, named, not_utf_8
from specplug.errors import CorpusError, SpecplugError

STDIN = "-"
"""Stands for JSON lines on standard input."""

_LINES = (".jsonl", ".ndjson")
_LOOKED_AT = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for reading sources.

    Attributes:
        globs: read only files in a folder that match one of these patterns.  A pattern with a ``/`` matches the path
            within the folder, any other the file's name; ``*`` also matches ``/``.  Empty: every file.
        fields: the field names of JSON lines.
        skip_bad: count unreadable items and continue, instead of raising.
    """

    globs: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)
    skip_bad: bool = False


@dataclass(slots=True)
class Skipped:
    """Numbers of files, folders or lines that were skipped so far.

    Attributes:
        hidden: files and folders whose name begins with a dot.
        binary: files with a zero byte near their beginning.
        linked: symbolic links to a folder, to a target outside the folder, or to a missing target.
        special: pipes, sockets, devices.
        empty: documents without text.
        bad: unreadable items, with `Reading.skip_bad`.
        first_bad: the messages of the first `most_bad` of these.
    """

    hidden: int = 0
    binary: int = 0
    linked: int = 0
    special: int = 0
    empty: int = 0
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)
    most_bad: int = 3

    def add_bad(self, error: SpecplugError) -> None:
        """Count an unreadable item."""
        self.bad += 1
        if len(self.first_bad) < self.most_bad:
            self.first_bad.append(str(error))

    def counts(self) -> dict[str, int]:
        """Return the counts that are not zero, by name."""
        kinds = ("hidden", "binary", "linked", "special", "empty", "bad")
        return {kind: count for kind in kinds if (count := getattr(self, kind))}


def stem(source: str) -> str | None:
    """Return the default name of a corpus from a source; None for standard input."""
    return None if source == STDIN else Path(source).resolve().stem


def read(source: str, reading: Reading, skipped: Skipped) -> Iterator[Content]:
    """Yield the documents of a source, one at a time, and count skipped items.

    Args:
        source: a folder, a file of JSON lines (`.jsonl` or `.ndjson`), a text file, or `STDIN`.
        reading: the options.
        skipped: the counts, which are updated.

    Raises:
        SpecplugError: there is no such source, or an item in it cannot be read; the message says where.
    """
    for content in _contents(source, reading, skipped):
        if content.text or len(content.token_ids):
            yield content
        else:
            skipped.empty += 1


def _contents(source: str, reading: Reading, skipped: Skipped) -> Iterator[Content]:
    if source == STDIN:
        yield from contents(sys.stdin.buffer, "stdin", "stdin", reading.fields, _bad(reading, skipped))
        return
    path = Path(source)
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise _unreadable(path, error) from error
    if folder:
        for each in _files(path, reading, skipped):
            if not _is_binary(each, skipped):
                yield from _file(each, _name(each.relative_to(path)), reading, skipped)
    else:
        yield from _file(path, _name(Path(path.name)), reading, skipped)


def _files(root: Path, reading: Reading, skipped: Skipped) -> Iterator[Path]:
    """Yield the matching files below a folder, sorted within each folder; does not follow links to folders."""

    def unreadable(error: OSError) -> None:
        _bad(reading, skipped)(_unreadable(Path(error.filename), error))

    inside = root.resolve()
    for folder, folders, names in os.walk(root, onerror=unreadable):
        here = Path(folder)
        hidden = [name for name in folders if name.startswith(".")]
        links = [name for name in folders if name not in hidden and (here / name).is_symlink()]
        skipped.hidden, skipped.linked = skipped.hidden + len(hidden), skipped.linked + len(links)
        folders[:] = sorted(set(folders) - {*hidden, *links})
        for name in sorted(names):
            if _wanted(here / name, root, reading.globs) and _is_plain(here / name, inside, skipped):
                yield here / name


def _wanted(path: Path, root: Path, globs: tuple[str, ...]) -> bool:
    whole = path.relative_to(root).as_posix()
    return not globs or any(fnmatchcase(whole if "/" in glob else path.name, glob) for glob in globs)


def _is_plain(path: Path, inside: Path, skipped: Skipped) -> bool:
    """Return whether to read a file: it is not hidden, is regular, and is in the folder after resolving links."""
    if path.name.startswith("."):
        skipped.hidden += 1
    elif path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(inside)):
        skipped.linked += 1
    elif path.exists() and not path.is_file():
        skipped.special += 1
    else:
        return True
    return False


def _is_binary(path: Path, skipped: Skipped) -> bool:
    try:
        with path.open("rb") as file:
            found = b"\0" in file.read(_LOOKED_AT)
    except OSError:
        return False  # reading it raises the error
    skipped.binary += found
    return found


def _file(path: Path, name: str, reading: Reading, skipped: Skipped) -> Iterator[Content]:
    bad = _bad(reading, skipped)
    try:
        if path.suffix in _LINES:
            with path.open("rb") as file:
                yield from contents(file, str(path), name, reading.fields, bad)
        else:
            yield _text(path, name)
    except OSError as error:
        bad(_unreadable(path, error))
    except CorpusError as error:
        bad(error)


def _text(path: Path, name: str) -> Content:
    data = path.read_bytes()
    try:
        return Content(named(name, str(path)), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf_8(str(path), f"byte {data[error.start]:#04x} at offset {error.start}") from error


def _bad(reading: Reading, skipped: Skipped) -> Callable[[SpecplugError], None]:
    def report(error: SpecplugError) -> None:
        if not reading.skip_bad:
            raise error
        skipped.add_bad(error)

    return report


def _unreadable(path: Path, error: OSError) -> SpecplugError:
    return CorpusError.build("cannot read a source", who=str(path), found=error.strerror or str(error))


def _name(path: Path) -> str:
    """Return a path as a document's name, with control characters and bytes that are not UTF-8 escaped."""
    text = os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
    return "".join(ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)
