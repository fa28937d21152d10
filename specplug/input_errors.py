"""Error messages for what users write: settings, request fields and orders.  One message has all mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from specplug.errors import SpecplugError, excerpt, quote, suggest

M = TypeVar("M", bound=BaseModel)

_MAX_SHOWN = 20
_PLAINER = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "invalid_key": "a string as key",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong value.

    Attributes:
        key: dotted; empty when the mapping as a whole is wrong.
        what: a description of the defect.
        found: the value, shortened by `quote`; None omits it from the message.
        expected, remedy: as in `SpecplugError.build`.
    """

    key: str
    what: str
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None

    def line(self, origin: str | None = None) -> str:
        """Return the mistake on one line, prefixed with the layer that it comes from."""
        about = {"found": self.found, "expected": self.expected, "remedy": self.remedy}
        return str(SpecplugError.build(self.what, who=origin, **about))


def join_mistakes(lines: Sequence[str], noun: str) -> str:
    """Return one message that lists all mistakes."""
    if len(lines) == 1:
        return lines[0]
    more = [f"... and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return "\n  ".join([f"{len(lines)} {noun}s are wrong:", *lines[:_MAX_SHOWN], *more])


def json_value(text: str | bytes | bytearray, kind: type[SpecplugError], what: str, **about: str | None) -> Any:
    """Return the value of a JSON text.  Python code joins the keys, so that other threads can run meanwhile.

    Raises:
        kind: the text is not JSON, or gives a key twice; the message begins with `what`.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise kind.build(what, **about, found=str(error)) from None  # type: ignore[arg-type]


def json_object(text: str | bytes | bytearray, kind: type[SpecplugError], what: str, **about: str | None) -> Any:
    """Return the object of a JSON text; raise `kind` for a text that is not JSON, has a key twice, or is no object."""
    return require_mapping(json_value(text, kind, what, expected="a JSON object", **about), kind, what, **about)


def require_mapping(value: object, kind: type[SpecplugError], what: str, **about: str | None) -> Any:
    """Return a value if it is a mapping; raise `kind` otherwise."""
    if isinstance(value, Mapping):
        return value
    raise kind.build(what, **about, found=quote(value), expected="a JSON object")  # type: ignore[arg-type]


def validate(model: type[M], raw: Mapping[Any, Any], kind: type[SpecplugError], noun: str, who: str | None = None) -> M:
    """Return plain data as its model.

    Raises:
        kind: keys are unknown or values bad; one message lists all of them.
    """
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        raise kind(join_mistakes([mistake.line(who) for mistake in from_pydantic(error, model, noun)], noun)) from None


def from_pydantic(error: ValidationError, model: type[BaseModel], noun: str, prefix: str = "") -> list[Mistake]:
    """Translate pydantic's errors for a `model` whose keys begin with `prefix` for the user.

    A model may have a mapping `removed`, of keys that it no longer has to the reasons.
    Mistakes beyond the number that messages show carry only their key: one request can hold a million of them.
    """
    mistakes: list[Mistake] = []
    removed: Mapping[str, str] = getattr(model, "removed", {})
    for item in error.errors(include_url=False):
        key = prefix + ".".join(str(part) for part in item["loc"]) if item["loc"] else prefix.rstrip(".")
        if len(mistakes) >= _MAX_SHOWN:
            mistakes.append(Mistake(key, f"bad {noun} {quote(key)}"))
        elif item["type"] == "extra_forbidden" and item["loc"][0] in removed:
            what = f"{noun} {quote(key)} was removed, as {removed[str(item['loc'][0])]}"
            mistakes.append(Mistake(key, what, quote(item["input"]), remedy="Leave it out"))
        elif item["type"] == "extra_forbidden":
            parent = ".".join(str(part) for part in item["loc"][:-1])
            names = {f"{parent}.{name}" if parent else name for name in _fields_at(model, item["loc"][:-1])}
            known = {prefix + name for name in names | {leaf.key for leaf in leaves(model)}}
            mistakes.append(unknown_key(key, item["input"], known, noun))
        elif item["type"] == "missing":
            mistakes.append(Mistake(key, f"{noun} {quote(key)} is missing"))
        else:
            where = f"bad value for {noun} {quote(key)}" if key else f"bad {noun}s"
            expected = _PLAINER.get(item["type"]) or _expectation(item["msg"])
            choices = re.findall(r"'([^']*)'", expected) if item["type"] == "literal_error" else []
            remedy = suggest(str(excerpt(item["input"])), choices) if choices else None
            mistakes.append(Mistake(key, where, quote(item["input"]), expected, remedy))
    return mistakes


def unknown_key(key: str, value: object, known: set[str], noun: str) -> Mistake:
    """Return the mistake of a key that does not exist."""
    remedy = suggest(key, known)
    if key in known:  # the keys of nested settings have dots in messages
        opened = "".join(f'{{"{level}": ' for level in key.split("."))
        remedy = f"A dot is a level: {opened}...{'}' * len(key.split('.'))}"
    return Mistake(key, f"unknown {noun} {quote(key)}", quote(value), remedy=remedy)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting that can be given, by its dotted key."""

    key: str
    default: object
    description: str


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[Leaf]:
    """Yield every setting of `model`, with sections expanded to their fields."""
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from leaves(nested, f"{prefix}{name}.")
        else:
            yield Leaf(prefix + name, field.get_default(call_default_factory=True), field.description or "")


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested mappings with its dotted key; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Raise `ValueError` for a key that is given twice, which JSON allows."""
    layer: dict[str, Any] = {}
    for key, value in pairs:
        if key in layer:
            raise ValueError(f"key {quote(key)} twice")
        layer[key] = value
    return layer


def _expectation(message: str) -> str:
    """Turn pydantic's sentence into the "expected" part of a message."""
    for start in ("Input should be ", "Value error, ", "Input should "):
        if message.startswith(start):
            return message.removeprefix(start)
    return message[:1].lower() + message[1:]


def _fields_at(model: type[BaseModel], place: tuple[int | str, ...]) -> set[str]:
    """Return the field names of the model nested at `place`, or an empty set if there is no model."""
    for part in place:
        if isinstance(part, int):  # an entry of a list: its model was found through the list's annotation
            continue
        field = model.model_fields.get(part)
        below = None if field is None else _model_in(field.annotation)
        if below is None:
            return set()
        model = below
    return set(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first pydantic model in an annotation, looking inside `tuple[...]` and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
