"""What operators say to add a corpus while an engine serves, as it comes over HTTP."""

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
"""Bodies, as OpenAPI shows them."""


class DocumentField(ReferenceField):
    """One document: its text or its token ids."""

    name: Text | None = Field(default=None, description="what it is found and removed by; null: a number")


def _documents(value: object) -> object:
    """Bring the short form, a text, to the long one.  A single text instead of a list is more likely a mistake."""
    if not isinstance(value, list):
        raise ValueError("a list of texts, or of objects with 'text' or 'token_ids'")
    return [{"text": entry} if isinstance(entry, str) else entry for entry in value]


def _name(value: object) -> object:
    """Refuse names that no address could hold: a client or a proxy would make another address of it."""
    if isinstance(value, str) and ("/" in value or value in (".", "..")):
        raise ValueError("a name without '/', and neither '.' nor '..'")
    return value


class AddOrder(Section):
    """A corpus to add."""

    name: Annotated[Text, BeforeValidator(_name)] = Field(description="of the corpus; 1 to 256 characters")
    documents: Annotated[tuple[DocumentField, ...], BeforeValidator(_documents)] = Field(
        strict=False, description="texts, or objects with a name and a text or token ids"
    )
    tenant: Text | None = Field(
        default=None, description="whose requests draft from it; null: those that name no tenant"
    )
    extend: bool = Field(default=False, description="add to the corpus if it is there already, instead of refusing")


def parse_add(body: bytes | bytearray, who: str) -> AddOrder:
    """Check what was sent, as JSON, to `who`.

    Raises:
        SpecplugError: it is no such order; all mistakes in one message.
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
    """Refuse what cannot be a corpus's name, or a tenant's; raises CorpusError."""
    check_name("corpus", corpus)
    check_name("tenant", tenant, empty=True)


def add_schema() -> dict[str, Any]:
    """Return the JSON schema of an order to add, whole in itself, as OpenAPI takes it."""
    schema = AddOrder.model_json_schema()
    document = schema.pop("$defs")[DocumentField.__name__]
    schema["properties"]["documents"]["items"] = {"anyOf": [{"type": "string"}, document]}
    return schema
