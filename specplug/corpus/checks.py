"""Checks of the types and ranges of values in a store's files.

A checksum shows that a file is unchanged, not that its writer is trustworthy.  Every value is checked before use, so
that a wrong one affects only its own tenant or segment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from specplug.corpus.layout import MOST_SEGMENT_TOKENS, SEGMENT_FILE
from specplug.corpus.names import check_name
from specplug.corpus.sealed import torn
from specplug.errors import SpecplugError
from specplug.settings.mistakes import shown

T = TypeVar("T")


def _named(kind: str, value: str, *, empty: bool = False) -> str:
    try:
        return check_name(kind, value, empty=empty)
    except SpecplugError as error:
        raise ValueError(str(error)) from error


def _file(value: str) -> str:
    if not SEGMENT_FILE.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a segment's name")
    return value


String = Annotated[str, Field(strict=True)]
TenantName = Annotated[String, AfterValidator(lambda value: _named("tenant", value, empty=True))]
CorpusName = Annotated[String, AfterValidator(lambda value: _named("corpus", value))]
SegmentName = Annotated[String, AfterValidator(_file)]
Offset = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]
Generation = Annotated[int, Field(strict=True, ge=1, le=1 << 62)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_SEGMENT_TOKENS)]
"""A number of documents or tokens of one segment."""


def parsed(adapter: TypeAdapter[T], content: Any, path: Path, kind: str) -> T:
    """Parse a file's content as a type.

    Args:
        adapter: the adapter of the type; extra and missing keys are errors.
        content: the content of the file.
        path, kind: the file and its format, for the message.

    Raises:
        CorpusError: a value has the wrong type or is out of range; the message names the first one.
    """
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise torn(path, kind, f"{where}: {first['msg']}, not {shown(first['input'])}") from error
