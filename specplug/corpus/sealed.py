"""JSON with a checksum of itself: store.json, manifests and the headers of segments.

A checksum shows that a file is unchanged, not that its writer is trustworthy.  Types and ranges are therefore checked
as well, so that a wrong value affects only its own tenant or segment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from specplug.corpus.files import checksum
from specplug.corpus.names import check_name
from specplug.errors import CorpusError, SpecplugError, describe, quote

T = TypeVar("T")

VERSION = 2
MOST_SEGMENT_TOKENS = 1 << 30  # places are int32

_MARK = b'"checksum":"'
_BLANK = b"0" * 64


String = Annotated[str, Field(strict=True)]
CorpusName = Annotated[String, AfterValidator(lambda value: check_name("corpus", value))]
Offset = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]


def sealed(make: Callable[[Mapping[str, Any]], Any], kind: str, *, align: int = 1, after: int = 0) -> bytes:
    """Return JSON with a checksum over all its bytes, computed with zeros in place of the checksum.

    Args:
        make: takes the common first fields and returns the object to write.  Nothing before these fields may have a key
            "checksum".
        kind: the format's name.
        align, after: blanks pad the JSON so that its size plus the `after` bytes before it is a multiple of `align`.
    """
    head = {"checksum": _BLANK.decode(), "format": kind, "version": str(VERSION)}
    data = json.dumps(make(head), separators=(",", ":")).encode()
    data += b" " * (-(after + len(data)) % align)
    at = data.index(_MARK) + len(_MARK)
    return data[:at] + checksum(data).encode() + data[at + len(_BLANK) :]


def opened(data: bytes, kind: str, path: Path, *, within: str | None = None) -> dict[str, Any]:
    """Check and return the object that `sealed` wrote; its common fields are under the key `within`, or at the top.

    One that is torn, or of another format or version, raises CorpusError.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        head = content[within] if within else content
        found = head["format"]
        version = int(str(head["version"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise torn(path, kind, f"no readable header ({describe(error)[:120]})") from error
    if found != kind:
        raise CorpusError.build("not a file of a corpus store", who=str(path), found=repr(found)[:100], expected=kind)
    if version != VERSION:
        raise CorpusError.build(
            "a file of another version of the corpus store",
            who=str(path),
            found=f"version {version}",
            expected=f"{VERSION}",
            remedy="Update specplug" if version > VERSION else "Build the store anew",
        )
    at = data.find(_MARK) + len(_MARK)
    if checksum(data[:at] + _BLANK + data[at + len(_BLANK) :]).encode() != data[at : at + len(_BLANK)]:
        raise torn(path, kind, "another checksum than it says")
    return content


def parsed(adapter: TypeAdapter[T], content: Any, path: Path, kind: str) -> T:
    """Parse a file's content as a type; the first value that is missing or wrong is named by a CorpusError."""
    try:
        return adapter.validate_python(content)
    except CorpusError as error:
        raise torn(path, kind, str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise torn(path, kind, f"{where}: {first['msg']}, not {quote(first['input'])}") from error


def torn(path: Path, kind: str, found: str) -> SpecplugError:
    """Return the error for a file that is torn or of a different format."""
    return CorpusError.build(
        "a torn or foreign file in a corpus store",
        who=str(path),
        found=found,
        expected=f"a whole {kind}",
        remedy="The rest of the store still serves; `specplug corpus verify` finds all such files",
    )
