"""Wire form of parsed request fields, carried in a request's sampling parameters from the API process to the workers.

It is a mapping of texts, which every engine's transport carries.  Token ids are hexadecimal, the standard library's
fastest conversion between bytes and text: about 3 ms each way for a million ids.  As a list they would block the
interpreter for tens of milliseconds in every process on the way.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from specplug.types.request import Reference, RequestOptions, StoredDocument

WIRE_KEY = "specplug"
_VERSION_KEY = "wire"
_VERSION = "2"
_CLIENT_KEY = "client"
_TENANT_KEY = "tenant"
_IDS = np.dtype("<i4")

DEFAULTS = RequestOptions()
_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))


class Encoded(dict[str, Any]):
    """Fields that this process has parsed, which the type marks.

    In other processes they arrive as a plain dict, and so do the unparsed fields of clients here.
    """


def encode(options: RequestOptions, references: tuple[Reference, ...], tenant: str | None) -> Encoded:
    """Return the value for `WIRE_KEY`: the options that differ from the defaults, references and tenant."""
    changed = {name: value for name in _OPTIONS if (value := getattr(options, name)) != getattr(DEFAULTS, name)}
    sizes = [[reference.name, len(reference.token_ids)] for reference in references]
    ids = b"".join(reference.token_ids.astype(_IDS, copy=False).tobytes() for reference in references)
    fields = json.dumps({"options": changed, "references": sizes, "tenant": tenant})
    return Encoded({_VERSION_KEY: _VERSION, "fields": fields, "ids": ids.hex()})


NO_FIELDS = {WIRE_KEY: encode(DEFAULTS, (), None)}
"""The parsed arguments of a request without specplug fields."""


def is_encoded(extra_args: Mapping[str, Any]) -> bool:
    """Return whether this process has parsed the fields."""
    return isinstance(extra_args.get(WIRE_KEY), Encoded)


def decode(extra_args: Mapping[str, Any] | None) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return (options, references, tenant) of a request; defaults for a request without fields.

    Token ids are views of one array of bytes.  The arguments must come from a front end that parses fields, because
    what looks like the wire form may be a client's.
    """
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    if not isinstance(wire, dict) or wire.get(_VERSION_KEY) != _VERSION:
        return DEFAULTS, (), None
    fields = json.loads(wire["fields"])
    options = DEFAULTS
    if changed := fields["options"]:
        documents = tuple(StoredDocument(*each) for each in changed.get("documents", ()))
        options = RequestOptions(**{**changed, "corpora": tuple(changed.get("corpora", ())), "documents": documents})
    ids = np.frombuffer(bytes.fromhex(wire["ids"]), dtype=_IDS).astype(np.int32, copy=False)
    references = []
    start = 0
    for name, size in fields["references"]:
        references.append(Reference(ids[start : start + size], name))
        start += size
    return options, tuple(references), wire.get(_TENANT_KEY) or fields["tenant"]


def with_client(extra_args: Mapping[str, Any] | None, client: str | None, tenant: str | None = None) -> dict[str, Any]:
    """Return parsed arguments, or those without fields, with the client's digest and assigned tenant added."""
    parsed = {**NO_FIELDS, **(extra_args or {})}
    added = {_CLIENT_KEY: client, _TENANT_KEY: tenant}
    present = {key: value for key, value in added.items() if value is not None}
    kind = type(parsed[WIRE_KEY])  # what is not marked as parsed stays so
    return {**parsed, WIRE_KEY: kind({**parsed[WIRE_KEY], **present})}


def reference_tokens(extra_args: Mapping[str, Any]) -> int:
    """Return the number of reference tokens in parsed arguments."""
    return len(extra_args[WIRE_KEY]["ids"]) // (2 * _IDS.itemsize)


def client_of(extra_args: Mapping[str, Any] | None) -> str | None:
    """Return the client's digest that `with_client` added to the arguments, or None."""
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    return wire.get(_CLIENT_KEY) if isinstance(wire, dict) else None
