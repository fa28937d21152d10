"""How parsed request fields travel among a request's sampling parameters: from the API process to where it is served.

The values are those that msgpack and pickle carry as they are.  Token ids are bytes: as a list, a million of them would
hold the interpreter for tens of milliseconds in every process on the way.  Some engines let texts through only; for
those there is the packed form.
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
_VERSION = b"1"  # bytes: what a client sends comes as JSON, which cannot spell them
_PACKED_VERSION = "1"
_CLIENT_KEY = "client"
_IDS = np.dtype("<i4")

DEFAULTS = RequestOptions()
_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))
_NAMES = {"corpora", "documents"}  # tuples, which msgpack and JSON would turn into lists


class Packed(dict[str, Any]):
    """The packed form, in the process that made it.

    Its type says that the fields have been parsed: a client's are a plain dict.  What arrives elsewhere is one, too.
    """


def encode(options: RequestOptions, references: tuple[Reference, ...], tenant: str | None) -> dict[str, Any]:
    """Return what stands under `WIRE_KEY`: the options that differ from the defaults, references and tenant if any."""
    changed = {name: value for name in _OPTIONS if (value := getattr(options, name)) != getattr(DEFAULTS, name)}
    for name in _NAMES & changed.keys():
        changed[name] = [list(each) if isinstance(each, tuple) else each for each in changed[name]]
    wire: dict[str, Any] = {_VERSION_KEY: _VERSION, "options": changed}
    if references:
        wire["references"] = [[ref.name, ref.token_ids.astype(_IDS, copy=False).tobytes()] for ref in references]
    if tenant is not None:
        wire["tenant"] = tenant
    return wire


NO_FIELDS = {WIRE_KEY: encode(DEFAULTS, (), None)}
"""The arguments of a request that says nothing to specplug, parsed."""


def packed(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which the wire form, as `encode` makes it, is a flat mapping to texts.

    Ids are in hexadecimal: of the standard library's ways from bytes to a text and back the quickest, some 3 ms each
    for a million.
    """
    wire = dict(extra_args[WIRE_KEY])
    references = wire.pop("references", ())
    del wire[_VERSION_KEY]
    small = {**wire, "references": [[name, len(ids)] for name, ids in references]}
    ids = b"".join(ids for _, ids in references).hex()
    return {**extra_args, WIRE_KEY: Packed({_VERSION_KEY: _PACKED_VERSION, "fields": json.dumps(small), "ids": ids})}


def is_encoded(extra_args: Mapping[str, Any]) -> bool:
    """Whether the fields have been parsed already, by this process or, unless they are packed, by the one before it."""
    wire = extra_args.get(WIRE_KEY)
    return isinstance(wire, Packed) or (isinstance(wire, dict) and wire.get(_VERSION_KEY) == _VERSION)


def decode(extra_args: Mapping[str, Any] | None) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return (options, references, tenant) of a request, the defaults for one without fields.

    Token ids are views of the bytes that arrived.  What comes here has been through a front end that parses fields: a
    packed form that a client has made is not told from one of ours.
    """
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    if not isinstance(wire, dict):
        return DEFAULTS, (), None
    version = wire.get(_VERSION_KEY)
    if version == _PACKED_VERSION:
        wire = _unpacked(wire)
    elif version != _VERSION:
        return DEFAULTS, (), None
    options = _options(wire["options"]) if wire["options"] else DEFAULTS
    references = tuple(
        Reference(np.frombuffer(ids, dtype=_IDS).astype(np.int32, copy=False), name)
        for name, ids in wire.get("references", ())
    )
    return options, references, wire.get("tenant")


def with_client(extra_args: Mapping[str, Any] | None, client: str) -> dict[str, Any]:
    """Return arguments that say which client they came from, see `specplug.requests.clients`.

    Args:
        extra_args: parsed ones, in either form, or those of a request without fields.
        client: a digest.
    """
    given = extra_args if extra_args and WIRE_KEY in extra_args else {**(extra_args or {}), **NO_FIELDS}
    wire = given[WIRE_KEY]
    return {**given, WIRE_KEY: type(wire)({**wire, _CLIENT_KEY: client})}


def client_of(extra_args: Mapping[str, Any] | None) -> str | None:
    """Return which client arguments came from, as `with_client` says; None where that is not known."""
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    return wire.get(_CLIENT_KEY) if isinstance(wire, dict) else None


def _options(changed: Mapping[str, Any]) -> RequestOptions:
    corpora = tuple(changed.get("corpora", ()))
    documents = tuple(StoredDocument(*each) for each in changed.get("documents", ()))
    return RequestOptions(**{**changed, "corpora": corpora, "documents": documents})


def _unpacked(wire: Mapping[str, Any]) -> dict[str, Any]:
    small = json.loads(wire["fields"])
    data, start, references = memoryview(bytes.fromhex(wire["ids"])), 0, []
    for name, size in small["references"]:
        references.append([name, data[start : start + size]])
        start += size
    return {**small, "references": references}
