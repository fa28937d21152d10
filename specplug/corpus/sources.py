"""Reading of operators' sources as documents: text files, folders, JSON lines; and a store's own tokenizer for them."""

from __future__ import annotations

import json
import os
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Content
from specplug.corpus.names import MAX_DOCUMENT_NAME, check_name
from specplug.corpus.store import Store
from specplug.errors import CorpusError, SettingsError, SpecplugError
from specplug.text.loading import load_tokenizer
from specplug.text.tokenizers import Tokenizer

STDIN = "-"
"""Stands for JSON lines on standard input."""

_LINES = (".jsonl", ".ndjson")
_LOOKED_AT = 1 << 13
_NAMES = ("name", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFields:
    """The names of the objects' fields.

    Attributes:
        text: the field of the text.
        token_ids: the field of token ids, which take precedence if an object has both.
        name: the field of the name, a string or a whole number; None: ``name``, or else ``id``.
        vocab_size: ids must be below this; None: any int32.
    """

    text: str = "text"
    token_ids: str = "token_ids"
    name: str | None = None
    vocab_size: int | None = None


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
    fields: LineFields = field(default_factory=LineFields)
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
        yield from _from_lines(sys.stdin.buffer, "stdin", "stdin", reading.fields, _bad(reading, skipped))
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
                yield from _from_lines(file, str(path), name, reading.fields, bad)
        else:
            yield _text(path, name)
    except OSError as error:
        bad(_unreadable(path, error))
    except CorpusError as error:
        bad(error)


def _text(path: Path, name: str) -> Content:
    data = path.read_bytes()
    try:
        return Content(_named(name, str(path)), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf_8(str(path), f"byte {data[error.start]:#04x} at offset {error.start}") from error


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


def _from_lines(
    lines: Iterable[bytes], where: str, default: str, fields: LineFields, bad: Callable[[SpecplugError], None]
) -> Iterator[Content]:
    """Yield the documents; empty lines are skipped.

    Args:
        lines: the lines of a binary file.
        where: the file, for messages.
        default: the name of a document without one, followed by its line number.
        fields: the names of the fields.
        bad: called with the error of each unreadable line; may raise.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _content(line, f"{where}, line {number}", f"{default}:{number}", fields)
        except SpecplugError as error:
            bad(error)


def _not_utf_8(where: str, found: str) -> SpecplugError:
    """Return the error for bytes that are not UTF-8."""
    return CorpusError.build(
        "not UTF-8 text", who=where, found=found, remedy="Convert it, leave it out, or skip what is bad (--skip-bad)"
    )


def _named(name: str, where: str) -> str:
    """Return a document's name if it is valid.

    Raises:
        CorpusError: it is invalid; the message says where it is from.
    """
    try:
        return check_name("document", name, most=MAX_DOCUMENT_NAME)
    except SpecplugError as error:
        raise CorpusError(f"{where}: {error}") from error


def _content(line: bytes, where: str, default: str, fields: LineFields) -> Content:
    item = _object(line, where)
    name = _named(_line_name(item, where, default, fields), where)
    ids, text = item.get(fields.token_ids), item.get(fields.text)
    if ids is not None:
        return Content(name, None, _token_ids(ids, where, fields))
    if not isinstance(text, str):
        found = f"only {', '.join(map(repr, item)) or 'nothing'}" if text is None else type(text).__name__
        expected = f"a string {fields.text!r}, or a list {fields.token_ids!r}"
        raise _wrong("no text", where, found, expected, "Name the field of the text if it is another")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong("no valid Unicode", where, f"half a surrogate at {error.start}", "characters") from error
    return Content(name, text)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf_8(where, f"byte {line[error.start]:#04x} at offset {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise _wrong("no JSON", where, str(error), "an object") from error
    if not isinstance(item, dict):
        raise _wrong("no JSON object", where, type(item).__name__, 'such as {"name": ..., "text": ...}')
    return item


def _line_name(item: dict[str, Any], where: str, default: str, fields: LineFields) -> str:
    names = _NAMES if fields.name is None else (fields.name,)
    found = next((item[name] for name in names if item.get(name) is not None), None)
    if found is None and fields.name is None:
        return default
    if isinstance(found, (str, int)) and not isinstance(found, bool):
        return str(found)
    raise _wrong("no name", where, f"{names[-1]!r}: {found!r}"[:200], "a string or a whole number")


def _token_ids(ids: object, where: str, fields: LineFields) -> npt.NDArray[np.int32]:
    limit = np.iinfo(np.int32).max if fields.vocab_size is None else fields.vocab_size
    if ids == []:
        return np.empty(0, np.int32)
    found = np.asarray(ids) if isinstance(ids, list) and all(type(each) is int for each in ids) else None
    if found is None or found.dtype.kind != "i":
        raise _wrong("wrong token ids", where, f"{ids!r:.60}", f"a list of whole numbers in [0, {limit})")
    if found.min() < 0 or found.max() >= limit:
        other = found.min() if found.min() < 0 else found.max()
        raise _wrong("not a token of this tokenizer", where, str(other), f"ids in [0, {limit})")
    return found.astype(np.int32)


def _wrong(what: str, where: str, found: str, expected: str, remedy: str | None = None) -> SpecplugError:
    return CorpusError.build(what, who=where, found=found, expected=expected, remedy=remedy)


def tokenizer_of(store: Store, name: str | None = None) -> Tokenizer:
    """Return the tokenizer of a store, loaded by `name` or by the name in the store.

    Raises:
        SpecplugError: it cannot be loaded, or it is not the one that the store was built with.
    """
    try:
        found = load_tokenizer(store.tokenizer.name if name is None else name)
    except SettingsError as error:
        if name is not None:
            raise
        raise SettingsError(f"the store's tokenizer: {error}. Say where it is with --tokenizer") from error
    Store.open(store.root, found.fingerprint)
    return found
