"""Schema of the fields of one request, as sent over HTTP: names, types, limits and short forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, WrapValidator, model_validator

from specplug.requests.references import Ids, parsed_ids
from specplug.settings.model import MAX_SPECULATIVE_TOKENS, Section

MAX_NAME = 256
"""Longest name of a tenant, a corpus or a document, in characters."""

MAX_KEYS = 32
"""Most keys of one object; `RequestFields` has fewer fields."""

MAX_PARTS = 1024
"""Most parts of a prediction."""


def as_list(value: object) -> list[object]:
    """Return the entries of a field that takes one entry or a list of entries; null means no entries."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value is None else [value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"valid Unicode; character {error.start} is a lone surrogate") from None
    return value


def _long_form(key: str) -> BeforeValidator:
    """Return a validator that expands the short forms, a text or a list of texts, to objects with this key."""
    return BeforeValidator(lambda value: [{key: each} if isinstance(each, str) else each for each in as_list(value)])


def _parts(value: object) -> object:
    if isinstance(value, (list, tuple)) and len(value) > MAX_PARTS:
        raise ValueError(f"at most {MAX_PARTS} parts")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _prediction(value: object) -> object:
    if value is None or isinstance(value, (Mapping, Prediction)):
        return value
    raise ValueError("a text as 'specplug_prediction', or OpenAI's object with 'type' and 'content'")


def _number_or_name(value: object, validated: Callable[[object], object]) -> object:
    """Give one reason where pydantic gives one for each type."""
    try:
        return validated(value)
    except ValidationError:
        raise ValueError(f"a finite number, or a name of 1 to {MAX_NAME} characters") from None


class Fields(Section):
    """A mapping that clients send; one with more keys than any needs is refused as a whole, not key by key."""

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: object) -> object:
        if isinstance(value, Mapping) and len(value) > MAX_KEYS:
            raise ValueError(f"at most {MAX_KEYS} keys")
        return value


Text = Annotated[str, PlainValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class ReferenceField(Fields):
    """One reference: its text or its token ids."""

    text: Text | None = Field(default=None, description="the text, tokenised by the server")
    token_ids: Annotated[Ids, PlainValidator(parsed_ids)] | None = Field(
        default=None, description="the text as ids of the target's vocabulary: a list, or base64 of 32-bit integers"
    )
    name: Text | None = Field(default=None, max_length=MAX_NAME, description="its name in traces")

    @model_validator(mode="after")
    def _either(self) -> ReferenceField:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("either 'text' or 'token_ids'")
        return self


class DocumentField(Fields):
    """One document of the server's corpora."""

    name: Name
    corpus: Name | None = Field(default=None, description="the corpus that holds it; null searches all of the tenant's")


class ContentPart(Fields):
    """One part of a prediction."""

    type: Literal["text"]
    text: Text


class Prediction(Fields):
    """OpenAI's predicted output: text that the answer will mostly repeat."""

    type: Literal["content"]
    content: Annotated[tuple[ContentPart, ...], BeforeValidator(_parts)] = Field(strict=False)


class RequestFields(Fields):
    """The fields of one request, as sent over HTTP."""

    enabled: bool = Field(default=True, description="false switches drafting off for this request")
    num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="most draft tokens per step for this request; it can lower the server's limit, not raise it",
    )
    proposer: str | None = Field(default=None, description="one of the server's extra proposers, to draft with instead")
    verifier: str | None = Field(
        default=None,
        description="the server's verifier, by name; one that is not lossless serves only requests that name it",
    )
    acceptance_threshold: Annotated[float | Name | None, WrapValidator(_number_or_name)] = Field(
        default=None,
        description="strictness of the lossy verifier that the request names, in (0, 1] where 1 is lossless, or the "
        "name of one of the server's acceptance_thresholds",
    )
    references: Annotated[tuple[ReferenceField, ...], _long_form("text")] = Field(
        default=(), strict=False, description="texts that the answer is likely to copy from"
    )
    prediction: Annotated[Prediction | None, BeforeValidator(_prediction)] = Field(
        default=None, description="OpenAI's predicted output; treated as one more reference, searched first"
    )
    documents: Annotated[tuple[DocumentField, ...], _long_form("name")] = Field(
        default=(), strict=False, description="documents of the server's corpora that the answer is likely to copy from"
    )
    corpora: Annotated[tuple[Name, ...], BeforeValidator(as_list)] = Field(
        default=(), strict=False, description="the server's corpora to draft from first"
    )
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_NAME,
        description="whose corpora to draft from; state kept across requests is separated by tenant",
    )
    store: bool = Field(
        default=True, description="false keeps the response out of any response memory, and apart from other requests"
    )
    group: Name | None = Field(
        default=None,
        description="requests of one group draft from each other's answers while they run; those on the same prompt "
        "are one without it",
    )
