"""Wire form of parsed request fields, carried in a request's sampling parameters from the API process to the workers.

The values are of types that msgpack and pickle carry unchanged.  Token ids are bytes: as a list, a million of them
would block the interpreter for tens of milliseconds in every process on the way.  The packed form is for engines that
pass only strings through.
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
_VERSION = b"1"  # bytes, which JSON cannot express, so a client cannot send this marker
_PACKED_VERSION = "1"
_CLIENT_KEY = "client"
_TENANT_KEY = "tenant"
_IDS = np.dtype("<i4")

DEFAULTS = RequestOptions()
_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))
_NAMES = {"corpora", "documents"}  # tuples, which msgpack and JSON would turn into lists


class Packed(dict[str, Any]):
    """The packed form, within the process that made it: the type marks it as parsed.

    A client's fields are a plain dict, as which the packed form arrives in other processes.
    """


def encode(options: RequestOptions, references: tuple[Reference, ...], tenant: str | None) -> dict[str, Any]:
    """Return the value for `WIRE_KEY`: the options that differ from the defaults, and references and tenant if any."""
    changed = {name: value for name in _OPTIONS if (value := getattr(options, name)) != getattr(DEFAULTS, name)}
    for name in _NAMES & changed.keys():
        changed[name] = [list(each) if isinstance(each, tuple) else each for each in changed[name]]
    wire: dict[str, Any] = {_VERSION_KEY: _VERSION, "options": changed}
    if references:
        wire["references"] = [[ref.name, ref.token_ids.astype(_IDS, copy=False).tobytes()] for ref in references]
    if tenant is not None:
        wire[_TENANT_KEY] = tenant
    return wire


NO_FIELDS = {WIRE_KEY: encode(DEFAULTS, (), None)}
"""The parsed arguments of a request without specplug fields."""


def pack(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the wire form that `encode` made flattened to a mapping to strings.

    Ids are hexadecimal, the standard library's fastest conversion between bytes and text: about 3 ms each way for a
    million ids.
    """
    wire = dict(extra_args[WIRE_KEY])
    references = wire.pop("references", ())
    del wire[_VERSION_KEY]
    small = {**wire, "references": [[name, len(ids)] for name, ids in references]}
    ids = b"".join(ids for _, ids in references).hex()
    return {**extra_args, WIRE_KEY: Packed({_VERSION_KEY: _PACKED_VERSION, "fields": json.dumps(small), "ids": ids})}


def is_encoded(extra_args: Mapping[str, Any]) -> bool:
    """Return whether the fields are parsed already, by this process or, unless packed, by the preceding one."""
    wire = extra_args.get(WIRE_KEY)
    return isinstance(wire, Packed) or (isinstance(wire, dict) and wire.get(_VERSION_KEY) == _VERSION)


def decode(extra_args: Mapping[str, Any] | None) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return (options, references, tenant) of a request; defaults for a request without fields.

    Token ids are views of the received bytes.  The arguments must come from a front end that parses fields, because a
    packed form that a client made cannot be distinguished from a genuine one.
    """
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    if not isinstance(wire, dict):
        return DEFAULTS, (), None
    version = wire.get(_VERSION_KEY)
    assigned = wire.get(_TENANT_KEY)
    if version == _PACKED_VERSION:
        wire = _unpacked(wire)
    elif version != _VERSION:
        return DEFAULTS, (), None
    options = DEFAULTS
    if changed := wire["options"]:
        documents = tuple(StoredDocument(*each) for each in changed.get("documents", ()))
        options = RequestOptions(**{**changed, "corpora": tuple(changed.get("corpora", ())), "documents": documents})
    references = tuple(
        Reference(np.frombuffer(ids, dtype=_IDS).astype(np.int32, copy=False), name)
        for name, ids in wire.get("references", ())
    )
    return options, references, assigned or wire.get(_TENANT_KEY)


def with_client(extra_args: Mapping[str, Any] | None, client: str | None, tenant: str | None = None) -> dict[str, Any]:
    """Return parsed arguments, in either form or without fields, with the client's digest and assigned tenant added."""
    parsed = extra_args if extra_args and WIRE_KEY in extra_args else {**(extra_args or {}), **NO_FIELDS}
    wire = parsed[WIRE_KEY]
    added = {_CLIENT_KEY: client, _TENANT_KEY: tenant}
    return {**parsed, WIRE_KEY: type(wire)({**wire, **{key: each for key, each in added.items() if each is not None}})}


def reference_tokens(extra_args: Mapping[str, Any]) -> int:
    """Return the number of reference tokens in parsed arguments, in either form."""
    wire = extra_args[WIRE_KEY]
    if isinstance(wire, Packed):
        return len(wire["ids"]) // (2 * _IDS.itemsize)
    return sum(len(ids) for _, ids in wire.get("references", ())) // _IDS.itemsize


def client_of(extra_args: Mapping[str, Any] | None) -> str | None:
    """Return the client's digest that `with_client` added to the arguments, or None."""
    wire = extra_args.get(WIRE_KEY) if extra_args else None
    return wire.get(_CLIENT_KEY) if isinstance(wire, dict) else None


def _unpacked(wire: Mapping[str, Any]) -> dict[str, Any]:
    small = json.loads(wire["fields"])
    data = memoryview(bytes.fromhex(wire["ids"]))
    start = 0
    references = []
    for name, size in small["references"]:
        references.append([name, data[start : start + size]])
        start += size
    return {**small, "references": references}
