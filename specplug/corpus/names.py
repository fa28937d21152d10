"""Names of tenants, corpora and documents: validation, folder names of tenants, and hashes of documents' names."""

from __future__ import annotations

import hashlib
import string
import unicodedata
from collections.abc import Iterable
from itertools import islice

from specplug.errors import CorpusError, SpecplugError, suggest

MAX_NAME = 256
"""The maximum number of characters of a tenant's or corpus's name."""

MAX_DOCUMENT_NAME = 1024
"""The maximum number of characters of a document's name, which is often a path or an address."""

_PLAIN = frozenset((string.ascii_lowercase + string.digits + "_-").encode())
_LONGEST = 200  # bytes; file systems take 255
_HEAD = 64
_LOOKED_AT = 2000
_SHOWN = 20


def check_name(kind: str, name: object, *, max_length: int = MAX_NAME, empty: bool = False) -> str:
    """Return the name of a tenant, corpus or document if it has 1 (or 0 with `empty`) to `max_length` characters.

    Another one, or one with control characters or that is not valid Unicode, raises CorpusError.
    """
    if not isinstance(name, str):
        raise _refused(kind, f"{type(name).__name__}", "a string")
    if len(name) > max_length or not (name or empty):
        raise _refused(kind, f"{len(name)} characters: {shortened(name)}", f"{0 if empty else 1} to {max_length}")
    for place, character in enumerate(name):
        category = unicodedata.category(character)
        if category in ("Cc", "Cs", "Zl", "Zp"):
            raise _refused(kind, f"{shortened(name)}, with {character!r} at {place}", "no control character")
    return name


def folder_name(name: str) -> str:
    """Return a folder name that is safe on any file system and different for each `name`.

    Bytes of the UTF-8 name other than lower-case letters, digits, "_" and "-" become "%" and two digits; the prefix
    "t-" prevents empty and hidden names and "..".  A name that would be too long keeps its beginning and ends with a
    digest of the whole; the manifest in the folder has the full name.
    """
    data = name.encode()
    plain = "t-" + _percent(data)
    if len(plain) <= _LONGEST:
        return plain
    return f"l-{_percent(data[:_HEAD])[:_HEAD]}-{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def name_hash(name: bytes) -> int:
    """Return the 64-bit hash by which documents are found."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def shortened(name: str) -> str:
    """Return a name shortened for messages."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."


def hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: similar names among the first 2000, and all names if there are few."""
    some = sorted(set(islice(known, _LOOKED_AT)))
    suggestion = suggest(name, some)
    if len(some) <= _SHOWN:
        return suggestion
    return suggestion.split("Known: ")[0].strip() or f"{len(some)} or more are there"


def _percent(data: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)


def _refused(kind: str, found: str, expected: str) -> SpecplugError:
    return CorpusError.build(f"not a name for a {kind}", found=found, expected=expected)
