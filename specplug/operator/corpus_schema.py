"""Schema of the HTTP request by which an operator adds a corpus to a serving engine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from specplug.corpus.names import check_name
from specplug.errors import RequestError
from specplug.operator.json_entries import loads
from specplug.requests.schema import ReferenceField, Text
from specplug.settings.mistakes import from_pydantic, no_duplicates, shown, together
from specplug.settings.model import Section

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


class DocumentField(ReferenceField):
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
    documents: Annotated[tuple[DocumentField, ...], BeforeValidator(_documents)] = Field(
        strict=False, description="texts, or objects with a name and a text or token ids"
    )
    tenant: Text | None = Field(
        default=None, description="the tenant whose requests draft from it; null: requests that name no tenant"
    )
    extend: bool = Field(default=False, description="add to the corpus if it exists already, instead of refusing")


def parse_add(body: bytes | bytearray, who: str) -> AddOrder:
    """Parse and validate the JSON body sent to `who`.

    Raises:
        SpecplugError: it is not a valid order; one message lists all mistakes.
    """
    try:
        body_fields = loads(body, "documents", no_duplicates)
    except (ValueError, RecursionError) as error:
        raise RequestError.build("the body is not JSON", who=who, found=str(error)) from None
    if not isinstance(body_fields, dict):
        raise RequestError.build("malformed order", who=who, found=shown(body_fields), expected="a JSON object")
    try:
        order = AddOrder.model_validate(body_fields)
    except ValidationError as error:
        mistakes = from_pydantic(error, AddOrder, "key")
        raise RequestError(together([mistake.line(who) for mistake in mistakes], "key")) from None
    check_names(order.name, order.tenant or "")
    return order


def check_names(corpus: str, tenant: str) -> None:
    """Raise `CorpusError` if a corpus's or tenant's name is invalid."""
    check_name("corpus", corpus)
    check_name("tenant", tenant, empty=True)


def add_schema() -> dict[str, Any]:
    """Return the JSON schema of `AddOrder` without external references, as OpenAPI requires."""
    schema = AddOrder.model_json_schema()
    document = schema.pop("$defs")[DocumentField.__name__]
    schema["properties"]["documents"]["items"] = {"anyOf": [{"type": "string"}, document]}
    return schema
