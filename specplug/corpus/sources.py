"""What operators have, read as documents one after the other: a text file, a folder, JSON lines."""

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
    """How sources are read.

    Attributes:
        globs: of a folder only files that one of these patterns matches: a pattern with a ``/`` the path within the
            folder, another the file's name; ``*`` matches ``/``, too.  None at all: every file.
        fields: how JSON lines name what they hold.
        skip_bad: count what cannot be read, and go on, instead of raising.
    """

    globs: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)
    skip_bad: bool = False


@dataclass(slots=True)
class Skipped:
    """What was left out so far: numbers of files, folders or lines.

    Attributes:
        hidden: files and folders whose name begins with a dot.
        binary: files with a zero byte near their beginning.
        linked: symbolic links to a folder, or out of it, or to nowhere.
        special: pipes, sockets, devices.
        empty: documents without text.
        bad: what cannot be read, with `Reading.skip_bad`.
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
        """Count something that cannot be read."""
        self.bad += 1
        if len(self.first_bad) < self.most_bad:
            self.first_bad.append(str(error))

    def counts(self) -> dict[str, int]:
        """Return what is not zero, by name."""
        kinds = ("hidden", "binary", "linked", "special", "empty", "bad")
        return {kind: count for kind in kinds if (count := getattr(self, kind))}


def stem(source: str) -> str | None:
    """Return what a corpus from a source is called where nobody says; None for standard input."""
    return None if source == STDIN else Path(source).resolve().stem


def read(source: str, reading: Reading, skipped: Skipped) -> Iterator[Content]:
    """Yield the documents of a source, one at a time, and count what is left out.

    Args:
        source: a folder, a file of JSON lines (`.jsonl` or `.ndjson`), a text file, or `STDIN`.
        reading: how.
        skipped: is added to.

    Raises:
        SpecplugError: there is no such source, or something in it cannot be read; the message says where.
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
    """Yield the files below a folder that are wanted, sorted within each folder; links to folders are not followed."""

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
    """Return whether a file is to be read: not hidden, regular, and in the folder even if links are followed."""
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
        return False  # reading it says why
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
    """Return a path as a document's name, bytes that are no UTF-8 and control characters escaped."""
    text = os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
    return "".join(ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)
