"""What operators send over HTTP: bodies, read within limits on size and time, and the orders in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from specplug.corpus.names import check_name
from specplug.errors import RequestError, SpecplugError
from specplug.input_errors import json_value, require_mapping, validate
from specplug.operator.control import parse_order
from specplug.requests.schema import ReferenceField, Text
from specplug.settings.model import Section

PATIENCE = 30.0
"""Seconds that a client may take in addition to the time that its bytes earn."""

BYTES_PER_SECOND = 1 << 16
"""A client that sends at least this fast never times out."""

MAX_ORDER_BYTES = 1 << 16
"""Most bytes of an order to `/specplug/mode`."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "two texts": {"value": {"name": "notes", "documents": ["The first text.", "The second one."]}},
    "more of a tenant's, named": {
        "value": {
            "name": "handbook",
            "tenant": "acme",
            "extend": True,
            "documents": [{"name": "intro.md", "text": "# Introduction"}, {"name": "ids.bin", "token_ids": [5, 6, 7]}],
        }
    },
}
"""Example bodies for OpenAPI."""


class BodyError(SpecplugError):
    """A body is too large (`status` 413, the rest is not read) or arrives too slowly (408)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(
    body: AsyncIterable[bytes],
    max_bytes: int,
    who: str,
    *,
    declared: str = "",
    hint: str = "",
    patience: float = PATIENCE,
) -> bytearray:
    """Return the body that arrives at `who` in pieces.

    Args:
        body: the pieces.
        max_bytes: bytes that it may have.
        who: the route.
        declared: its header ``content-length``, "" for none.
        hint: ends the message on a body that is too large.
        patience: seconds that it may take in addition to those that its bytes earn.

    Raises:
        BodyError: see there.
    """

    def too_large(found: str) -> BodyError:
        what = f"{who}: the body is too large; found {found} bytes; expected at most {max_bytes}{hint}"
        return BodyError(413, what)

    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large(declared)
    received = bytearray()
    begin = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(patience) as limit:
            async for piece in body:
                received += piece
                if len(received) > max_bytes:
                    raise too_large(f"more than {max_bytes}")
                limit.reschedule(begin + patience + len(received) / BYTES_PER_SECOND)
    except TimeoutError:
        expected = f"{BYTES_PER_SECOND // 1024} KiB a second, after the first {patience:.0f} seconds"
        raise BodyError(408, f"{who}: the body arrives too slowly; expected {expected}") from None
    return received


async def read_order(body: AsyncIterable[bytes], who: str) -> dict[str, Any]:
    """Return the fields of an order to `/specplug/mode`.

    Raises:
        SpecplugError: the body cannot be read, or is no order.
    """
    text = await read_body(body, MAX_ORDER_BYTES, who)
    order = parse_order(json_value(text, RequestError, "the body is not JSON", who=who), who)
    fields = order.model_dump(exclude_unset=True)
    if not fields:
        raise RequestError.build("the order is empty", who=who, expected="mode, num_speculative_tokens, or both")
    return fields


class AddedDocument(ReferenceField):
    """One document: its text or its token ids."""

    name: Text | None = Field(default=None, description="the name that identifies it; null: a number")


def _documents(value: object) -> object:
    """Expand the short form of an entry, a text.  A single text instead of a list is refused as a likely mistake."""
    if not isinstance(value, list):
        raise ValueError("a list of texts, or of objects with 'text' or 'token_ids'")
    return [{"text": entry} if isinstance(entry, str) else entry for entry in value]


def _name(value: object) -> object:
    """Refuse names that cannot be part of a URL, because clients and proxies would rewrite it."""
    if isinstance(value, str) and ("/" in value or value in (".", "..")):
        raise ValueError("a name without '/', and neither '.' nor '..'")
    return value


class AddOrder(Section):
    """A corpus to add."""

    name: Annotated[Text, BeforeValidator(_name)] = Field(description="the corpus's name; 1 to 256 characters")
    documents: Annotated[tuple[AddedDocument, ...], BeforeValidator(_documents)] = Field(
        strict=False, description="texts, or objects with a name and a text or token ids"
    )
    tenant: Text | None = Field(
        default=None, description="the tenant whose requests draft from it; null: requests that name no tenant"
    )
    extend: bool = Field(default=False, description="add to the corpus if it exists already, instead of refusing")


def parse_add_order(body: bytes | bytearray, who: str) -> AddOrder:
    """Parse and validate the JSON body sent to `who`.

    Raises:
        SpecplugError: it is not a valid order; one message lists all mistakes.
    """
    fields = json_value(body, RequestError, "the body is not JSON", who=who)
    require_mapping(fields, RequestError, "malformed order", who=who)
    order = validate(AddOrder, fields, RequestError, "key", who)
    check_names(order.name, order.tenant or "")
    return order


def check_names(corpus: str, tenant: str) -> None:
    """Raise `CorpusError` if a corpus's or tenant's name is invalid."""
    check_name("corpus", corpus)
    check_name("tenant", tenant, empty=True)


def add_order_schema() -> dict[str, Any]:
    """Return the JSON schema of `AddOrder` without external references, as OpenAPI requires."""
    schema = AddOrder.model_json_schema()
    document = schema.pop("$defs")[AddedDocument.__name__]
    schema["properties"]["documents"]["items"] = {"anyOf": [{"type": "string"}, document]}
    return schema
