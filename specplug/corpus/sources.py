"""Reading of operators' sources as documents: text files, folders, JSON lines; and a store's own tokenizer for them."""

from __future__ import annotations

import codecs
import json
import os
import stat
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from specplug.corpus.documents import Content, Tokens
from specplug.corpus.names import MAX_DOCUMENT_NAME, check_name, name_hash
from specplug.corpus.store import Store
from specplug.errors import CorpusError, SettingsError, SpecplugError
from specplug.text.tokenizers import Tokenizer, load_tokenizer

T = TypeVar("T")

STDIN = "-"
"""Stands for JSON lines on standard input."""

_LINES = (".jsonl", ".ndjson")
_WIDE = {  # the mark of UTF-16 begins that of UTF-32
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
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
            beginning and no byte-order mark; links to a folder, to a target outside the folder, or to none; special
            files, such as pipes; empty documents; and bad items, which cannot be read.
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


class Ids:
    """The ids of a corpus's JSON lines so far.  Files whose ids restart would get documents of the same name."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}

    def check(self, name: str, file: str) -> None:
        """Raise CorpusError if another file has this id."""
        first = self._files.setdefault(name_hash(name.encode()), file)
        if first != file:
            raise CorpusError.build(
                "an id that another file has, too",
                found=f"{name!r}, which is in {first}",
                expected="ids that do not restart, as documents are removed by them",
                remedy="Name the field of the documents' names (--name-field; with `--name-field id` both get this "
                "name), or make a corpus of each file",
            )


def read(source: str, reading: Reading, skipped: Skipped, ids: Ids | None = None) -> Iterator[Content]:
    """Yield the documents of a source, a folder, a text file, JSON lines (`.jsonl` or `.ndjson`) or `STDIN`.

    Counts what it skips in `skipped`; `ids` has the ids of the corpus's sources before this one.  Raises SpecplugError,
    which says where, if something cannot be read.
    """
    for content in _Reader(reading, skipped, ids or Ids()).read(source):
        if content.text or len(content.token_ids):
            yield content
        else:
            skipped.numbers["empty"] += 1


class _Reader:
    """Reads one source; see `read`."""

    def __init__(self, reading: Reading, skipped: Skipped, ids: Ids) -> None:
        self._reading = reading
        self._skipped = skipped
        self._ids = ids

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
                yield from self._file(each, _path_name(each.relative_to(path)))
        else:
            yield from self._file(path, _path_name(Path(path.name)), in_folder=False)

    def _files(self, root: Path) -> Iterator[Path]:
        """Yield the matching files below a folder, sorted within each folder; does not follow links to folders."""
        inside = root.resolve()
        globs = self._reading.globs
        for folder, folders, names in os.walk(root, onerror=lambda error: self._bad(_unreadable(root, error))):
            here = Path(folder)
            hidden = [name for name in folders if name.startswith(".")]
            links = [name for name in folders if name not in hidden and (here / name).is_symlink()]
            self._skipped.numbers.update(hidden=len(hidden), linked=len(links))
            folders[:] = sorted(set(folders) - {*hidden, *links})
            for path in (here / name for name in sorted(names)):
                whole = path.relative_to(root).as_posix()
                if globs and not any(fnmatchcase(whole if "/" in glob else path.name, glob) for glob in globs):
                    continue
                if kind := _left_out(path, inside):
                    self._skipped.numbers[kind] += 1
                else:
                    yield path

    def _file(self, path: Path, name: str, *, in_folder: bool = True) -> Iterator[Content]:
        try:
            with path.open("rb") as file:
                if in_folder and _is_binary(file):
                    self._skipped.numbers["binary"] += 1
                elif path.suffix.lower() in _LINES:
                    for lines in self._one(str(path), lambda: _utf_8_lines(file)):
                        yield from self._lines(lines, str(path), name)
                else:
                    data = file.read()
                    yield from self._one(str(path), lambda: Content(_checked(name), _decoded(data)))
        except OSError as error:
            self._bad(_unreadable(path, error))

    def _lines(self, lines: Iterable[bytes], where: str, default: str) -> Iterator[Content]:
        """Yield the documents of JSON lines; one without a name is called `default` with its line number."""
        for number, line in enumerate(lines, 1):
            if line.strip():
                ids = partial(self._ids.check, file=where)
                make = partial(_content, line, f"{default}:{number}", self._reading, ids)
                yield from self._one(f"{where}, line {number}", make)

    def _one(self, where: str, make: Callable[[], T]) -> Iterator[T]:
        """Yield what `make` returns, a document or lines, unless it is bad."""
        try:
            found = make()
        except SpecplugError as error:
            self._bad(CorpusError(f"{where}: {error}"))
        else:
            yield found

    def _bad(self, error: SpecplugError) -> None:
        if not self._reading.skip_bad:
            raise error
        self._skipped.numbers["bad"] += 1
        if len(self._skipped.first_bad) < self._skipped.most_bad:
            self._skipped.first_bad.append(str(error))


def _left_out(path: Path, inside: Path) -> str | None:
    """Return why a file is left out; None if it is regular, not hidden, and in the folder after resolving links."""
    if path.name.startswith("."):
        return "hidden"
    if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(inside)):
        return "linked"
    return "special" if path.exists() and not path.is_file() else None


def _is_binary(file: BinaryIO) -> bool:
    start = file.read(_LOOKED_AT)
    file.seek(0)
    return b"\0" in start and _wide_encoding(start) is None


def _wide_encoding(data: bytes) -> str | None:
    """Return the name of UTF-16 or UTF-32 if the data begins with its byte-order mark."""
    return next((encoding for mark, encoding in _WIDE.items() if data.startswith(mark)), None)


def _utf_8_lines(file: BinaryIO) -> Iterable[bytes]:
    """Return a file's lines in UTF-8, if it is in UTF-16 or UTF-32 by reading it whole."""
    start = file.read(4)
    file.seek(0)
    return file if _wide_encoding(start) is None else _decoded(file.read()).encode().splitlines()


def _unreadable(path: Path, error: OSError) -> SpecplugError:
    who = str(error.filename or path)
    return CorpusError.build("cannot read a source", who=who, found=error.strerror or str(error))


def _path_name(path: Path) -> str:
    """Return a path as a document's name, with control characters and bytes that are not UTF-8 escaped."""
    text = os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
    return "".join(ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)


def _checked(name: str) -> str:
    return check_name("document", name, max_length=MAX_DOCUMENT_NAME)


def _decoded(data: bytes) -> str:
    encoding = _wide_encoding(data)
    try:
        return data.decode(encoding or "utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {data[error.start]:#04x} at offset {error.start}"
        remedy = "Convert it, leave it out, or skip what is bad (--skip-bad)"
        raise CorpusError.build(f"not {(encoding or 'utf-8').upper()} text", found=found, remedy=remedy) from error


def _content(line: bytes, default: str, reading: Reading, check_id: Callable[[str], None]) -> Content:
    """Return the document on a line of JSON, called `default` if it has no name; one called by its id is checked."""
    decoded = _decoded(line)
    try:
        item = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise CorpusError.build("no JSON", found=str(error), expected="an object") from error
    if not isinstance(item, dict):
        expected = 'such as {"name": ..., "text": ...}'
        raise CorpusError.build("no JSON object", found=type(item).__name__, expected=expected)
    name = _checked(_line_name(item, default, reading.name_field))
    if reading.name_field is None and item.get("name") is None and item.get("id") is not None:
        check_id(name)
    ids = item.get("token_ids")
    text = item.get(reading.text_field)
    if ids is not None:
        return Content(name, None, _token_ids(ids, reading.vocab_size))
    if not isinstance(text, str):
        found = f"only {', '.join(map(repr, item)) or 'nothing'}" if text is None else type(text).__name__
        expected = f"a string {reading.text_field!r}, or a list 'token_ids'"
        remedy = "Name the field of the text if it is another"
        raise CorpusError.build("no text", found=found, expected=expected, remedy=remedy)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"half a surrogate at {error.start}"
        raise CorpusError.build("no valid Unicode", found=found, expected="characters") from error
    return Content(name, text)


def _line_name(item: dict[str, Any], default: str, field: str | None) -> str:
    names = ("name", "id") if field is None else (field,)
    found = next((item[name] for name in names if item.get(name) is not None), None)
    if found is None and field is None:
        return default
    if isinstance(found, (str, int)) and not isinstance(found, bool):
        return str(found)
    found = f"{names[-1]!r}: {found!r}"[:200]
    raise CorpusError.build("no name", found=found, expected="a string or a whole number")


def _token_ids(ids: object, vocab_size: int | None) -> Tokens:
    limit = np.iinfo(np.int32).max if vocab_size is None else vocab_size
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise CorpusError.build("wrong token ids", found=repr(ids)[:60], expected="a list of whole numbers")
    wrong = next((each for each in ids if not 0 <= each < limit), None)
    if wrong is not None:
        raise CorpusError.build("not a token of this tokenizer", found=str(wrong), expected=f"ids in [0, {limit})")
    return np.array(ids, np.int32)


def tokenizer_of(store: Store, name: str | None = None) -> Tokenizer:
    """Return the tokenizer of a store, loaded by `name` or by the name in the store; raises SpecplugError if wrong."""
    try:
        found = load_tokenizer(store.tokenizer.name if name is None else name)
    except SettingsError as error:
        if name is not None:
            raise
        raise SettingsError(f"the store's tokenizer: {error}. Say where it is with --tokenizer") from error
    Store(store.root, found.fingerprint)
    return found
