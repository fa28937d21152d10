"""Reading of operators' sources as documents: text files, folders, JSON lines; and a store's own tokenizer for them."""

from __future__ import annotations

import json
import os
import stat
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
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
from specplug.text.tokenizers import Tokenizer, load_tokenizer

STDIN = "-"
"""Stands for JSON lines on standard input."""

_LINES = (".jsonl", ".ndjson")
_LOOKED_AT = 1 << 13
_KINDS = ("hidden", "binary", "linked", "special", "empty", "bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for reading sources.

    Attributes:
        globs: read only files in a folder that match one of these patterns.  A pattern with a ``/`` matches the path
            within the folder, any other the file's name; ``*`` also matches ``/``.  Empty: every file.
        text_field: the field of the text in JSON lines; where there is a field ``token_ids``, that is read instead.
        name_field: the field of the name, a string or a whole number; None: ``name``, or else ``id``.
        vocab_size: token ids must be below this; None: any int32.
        skip_bad: count unreadable items and continue, instead of raising.
    """

    globs: tuple[str, ...] = ()
    text_field: str = "text"
    name_field: str | None = None
    vocab_size: int | None = None
    skip_bad: bool = False


@dataclass(slots=True)
class Skipped:
    """What was skipped so far.

    Attributes:
        numbers: of hidden files and folders, whose name begins with a dot; binary files, with a zero byte near their
            beginning; links to a folder, to a target outside the folder, or to none; special files, such as pipes;
            empty documents; and bad items, which cannot be read.
        first_bad: the messages of the first `most_bad` bad items.
    """

    numbers: Counter[str] = field(default_factory=Counter)
    first_bad: list[str] = field(default_factory=list)
    most_bad: int = 3

    def counts(self) -> dict[str, int]:
        """Return the numbers that are not zero, by kind."""
        return {kind: self.numbers[kind] for kind in _KINDS if self.numbers[kind]}


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
    for content in _Reader(reading, skipped).read(source):
        if content.text or len(content.token_ids):
            yield content
        else:
            skipped.numbers["empty"] += 1


class _Reader:
    """Reads one source; see `read`."""

    def __init__(self, reading: Reading, skipped: Skipped) -> None:
        self._reading, self._skipped = reading, skipped

    def read(self, source: str) -> Iterator[Content]:
        if source == STDIN:
            yield from self._lines(sys.stdin.buffer, "stdin", "stdin")
            return
        path = Path(source)
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise _unreadable(path, error) from error
        if is_folder:
            for each in self._files(path):
                if not self._is_binary(each):
                    yield from self._file(each, _path_name(each.relative_to(path)))
        else:
            yield from self._file(path, _path_name(Path(path.name)))

    def _files(self, root: Path) -> Iterator[Path]:
        """Yield the matching files below a folder, sorted within each folder; does not follow links to folders."""
        inside = root.resolve()
        for folder, folders, names in os.walk(root, onerror=lambda error: self._bad(_unreadable(root, error))):
            here = Path(folder)
            hidden = [name for name in folders if name.startswith(".")]
            links = [name for name in folders if name not in hidden and (here / name).is_symlink()]
            self._skipped.numbers.update(hidden=len(hidden), linked=len(links))
            folders[:] = sorted(set(folders) - {*hidden, *links})
            for name in sorted(names):
                if self._is_wanted(here / name, root) and self._is_plain(here / name, inside):
                    yield here / name

    def _is_wanted(self, path: Path, root: Path) -> bool:
        globs, whole = self._reading.globs, path.relative_to(root).as_posix()
        return not globs or any(fnmatchcase(whole if "/" in glob else path.name, glob) for glob in globs)

    def _is_plain(self, path: Path, inside: Path) -> bool:
        """Return whether to read a file: it is not hidden, is regular, and is in the folder after resolving links."""
        if path.name.startswith("."):
            kind = "hidden"
        elif path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(inside)):
            kind = "linked"
        elif path.exists() and not path.is_file():
            kind = "special"
        else:
            return True
        self._skipped.numbers[kind] += 1
        return False

    def _is_binary(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                found = b"\0" in file.read(_LOOKED_AT)
        except OSError:
            return False  # reading it raises the error
        self._skipped.numbers["binary"] += found
        return found

    def _file(self, path: Path, name: str) -> Iterator[Content]:
        try:
            if path.suffix in _LINES:
                with path.open("rb") as file:
                    yield from self._lines(file, str(path), name)
            else:
                yield _text(path, name)
        except OSError as error:
            self._bad(_unreadable(path, error))
        except CorpusError as error:
            self._bad(error)

    def _lines(self, lines: Iterable[bytes], where: str, default: str) -> Iterator[Content]:
        """Yield the documents of JSON lines; one without a name is called `default` with its line number."""
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield _content(line, f"{where}, line {number}", f"{default}:{number}", self._reading)
                except SpecplugError as error:
                    self._bad(error)

    def _bad(self, error: SpecplugError) -> None:
        if not self._reading.skip_bad:
            raise error
        self._skipped.numbers["bad"] += 1
        if len(self._skipped.first_bad) < self._skipped.most_bad:
            self._skipped.first_bad.append(str(error))


def _text(path: Path, name: str) -> Content:
    data = path.read_bytes()
    try:
        return Content(_checked_name(name, str(path)), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf_8(str(path), f"byte {data[error.start]:#04x} at offset {error.start}") from error


def _unreadable(path: Path, error: OSError) -> SpecplugError:
    who = str(error.filename or path)
    return CorpusError.build("cannot read a source", who=who, found=error.strerror or str(error))


def _path_name(path: Path) -> str:
    """Return a path as a document's name, with control characters and bytes that are not UTF-8 escaped."""
    text = os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
    return "".join(ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)


def _checked_name(name: str, where: str) -> str:
    try:
        return check_name("document", name, most=MAX_DOCUMENT_NAME)
    except SpecplugError as error:
        raise CorpusError(f"{where}: {error}") from error


def _content(line: bytes, where: str, default: str, reading: Reading) -> Content:
    item = _object(line, where)
    name = _checked_name(_line_name(item, where, default, reading.name_field), where)
    ids, text = item.get("token_ids"), item.get(reading.text_field)
    if ids is not None:
        return Content(name, None, _token_ids(ids, where, reading.vocab_size))
    if not isinstance(text, str):
        found = f"only {', '.join(map(repr, item)) or 'nothing'}" if text is None else type(text).__name__
        expected = f"a string {reading.text_field!r}, or a list 'token_ids'"
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


def _line_name(item: dict[str, Any], where: str, default: str, field: str | None) -> str:
    names = ("name", "id") if field is None else (field,)
    found = next((item[name] for name in names if item.get(name) is not None), None)
    if found is None and field is None:
        return default
    if isinstance(found, (str, int)) and not isinstance(found, bool):
        return str(found)
    raise _wrong("no name", where, f"{names[-1]!r}: {found!r}"[:200], "a string or a whole number")


def _token_ids(ids: object, where: str, vocab_size: int | None) -> npt.NDArray[np.int32]:
    limit = np.iinfo(np.int32).max if vocab_size is None else vocab_size
    if ids == []:
        return np.empty(0, np.int32)
    found = np.asarray(ids) if isinstance(ids, list) and all(type(each) is int for each in ids) else None
    if found is None or found.dtype.kind != "i":
        raise _wrong("wrong token ids", where, f"{ids!r:.60}", f"a list of whole numbers in [0, {limit})")
    if found.min() < 0 or found.max() >= limit:
        other = found.min() if found.min() < 0 else found.max()
        raise _wrong("not a token of this tokenizer", where, str(other), f"ids in [0, {limit})")
    return found.astype(np.int32)


def _not_utf_8(where: str, found: str) -> SpecplugError:
    remedy = "Convert it, leave it out, or skip what is bad (--skip-bad)"
    return CorpusError.build("not UTF-8 text", who=where, found=found, remedy=remedy)


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
    Store(store.root, found.fingerprint)
    return found
