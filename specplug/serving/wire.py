"""How parsed request fields travel inside `SamplingParams.extra_args`: from the API process to scheduler and workers.

The values are those that msgpack and pickle carry as they are.  Token ids are bytes: as a list, a million of them would
hold the interpreter for tens of milliseconds in every process on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from specplug.types.request import Reference, RequestOptions

WIRE_KEY = "specplug"
_VERSION_KEY = "wire"
_VERSION = b"1"  # bytes: what a client sends comes as JSON, which cannot spell them
_IDS = np.dtype("<i4")

DEFAULTS = RequestOptions()
_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))


def encode(options: RequestOptions, references: tuple[Reference, ...], tenant: str | None) -> dict[str, Any]:
    """Return what stands under `WIRE_KEY`: the options that differ from the defaults, references and tenant if any."""
    changed = {name: value for name in _OPTIONS if (value := getattr(options, name)) != getattr(DEFAULTS, name)}
    wire: dict[str, Any] = {_VERSION_KEY: _VERSION, "options": changed}
    if references:
        wire["references"] = [[ref.name, ref.token_ids.astype(_IDS, copy=False).tobytes()] for ref in references]
    if tenant is not None:
        wire["tenant"] = tenant
    return wire


def is_encoded(extra_args: Mapping[str, Any]) -> bool:
    """Whether the fields have been parsed already, by this process or the one before it."""
    wire = extra_args.get(WIRE_KEY)
    return isinstance(wire, dict) and wire.get(_VERSION_KEY) == _VERSION


def decode(extra_args: Mapping[str, Any] | None) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return (options, references, tenant) of a request, the defaults for one without fields.

    Token ids are views of the bytes that arrived.
    """
    if not extra_args or not is_encoded(extra_args):
        return DEFAULTS, (), None
    wire = extra_args[WIRE_KEY]
    options = RequestOptions(**wire["options"]) if wire["options"] else DEFAULTS
    references = tuple(
        Reference(np.frombuffer(ids, dtype=_IDS).astype(np.int32, copy=False), name)
        for name, ids in wire.get("references", ())
    )
    return options, references, wire.get("tenant")
