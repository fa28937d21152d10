"""Parser of a request's specplug fields, in `custom_params` of its sampling parameters, to their wire form.

SGLang sends requests to its scheduler by pickle, or by msgpack (``SGLANG_USE_PICKLE_IPC=0``), which accepts only
strings, numbers, and flat lists and mappings of them; anything else ends the scheduler.  The wire form passes both.
"""

from __future__ import annotations

import weakref
from typing import Any

from fastapi import HTTPException

from specplug.errors import RequestError
from specplug.requests import arguments, wire
from specplug.requests.clients import RequestClient
from specplug.requests.parsing import FieldParser
from specplug.text.request_tokenizer import RequestTokenizer
from specplug_sglang.config import resolved


class RefusedRequest(RequestError, ValueError):
    """A request's specplug fields are invalid.  SGLang returns 400 for a `ValueError`, and 500 for other errors."""


class BusyRequest(RequestError, HTTPException):
    """A request's references are too many at the moment."""

    def __init__(self, message: str) -> None:
        HTTPException.__init__(self, 429, message)

    def __str__(self) -> str:
        return str(self.detail)


CUSTOM = "custom_params"
_HELD = "_specplug_held"  # attribute of a request whose references are counted


class PackingParser(FieldParser):
    """Parses the fields of one server's requests to a form that SGLang's transport accepts."""

    async def parse(self, obj: Any, client: RequestClient | None) -> None:
        """Replace the sampling parameters of a `GenerateReqInput` by new ones with the wire form.

        A mapping of custom parameters that several requests share is parsed once.  References count as the client's
        until `release` is called, or `obj` is deleted because it never ran.

        Raises:
            RefusedRequest: the fields are invalid.
            BusyRequest: the client or the server holds too many reference tokens.
        """
        done: dict[int, dict[str, Any]] = {}
        sender = None if client is None else client.digest or ""

        async def changed(params: Any) -> Any:
            if not _has_unparsed(params):
                return params
            given = params[CUSTOM]
            if id(given) not in done:
                done[id(given)] = await self.parse_in_thread(given, sender)
            return {**params, CUSTOM: done[id(given)]}

        params = obj.sampling_params
        if isinstance(params, list):
            obj.sampling_params = [await changed(each) for each in params]
        else:
            obj.sampling_params = await changed(params)
        if sender is not None:
            setattr(obj, _HELD, weakref.finalize(obj, self.reserve(sender, _reference_tokens(obj))))

    def preferred(self, params: Any) -> Any:
        """Return a server's preferred sampling parameters, parsed."""
        return {**params, CUSTOM: self.parse_fields(params[CUSTOM])} if _has_unparsed(params) else params


def parser_of(manager: Any) -> PackingParser:
    """Return the parser for the requests of an initialised `TokenizerManager`."""
    tokenizer = RequestTokenizer(lambda: manager.tokenizer)
    return PackingParser(
        resolved(manager.server_args), manager.model_config.vocab_size, tokenizer, RefusedRequest, BusyRequest
    )


def is_held(obj: Any) -> bool:
    """Return whether a request's references are counted."""
    return hasattr(obj, _HELD)


def release(obj: Any) -> None:
    """Stop counting the references of a request that has been served."""
    held = getattr(obj, _HELD, None)
    if held is not None:
        held()


def _reference_tokens(obj: Any) -> int:
    """Return the reference tokens of a parsed request, for each of its prompts and samples."""
    prompts = obj.text if obj.text is not None else obj.input_ids
    many = isinstance(prompts, list) and prompts and not isinstance(prompts[0], int)
    params = obj.sampling_params
    each = params if isinstance(params, list) else [params] * (len(prompts) if many else 1)
    parsed = [one for one in each if isinstance(one, dict) and wire.is_encoded(one.get(CUSTOM) or {})]
    samples = [n if isinstance(n := one.get("n"), int) and n > 1 else 1 for one in parsed]
    return sum(wire.reference_tokens(one[CUSTOM]) * n for one, n in zip(parsed, samples, strict=True))


def with_client(obj: Any, client: str | None, tenant: str | None, preferred: Any) -> None:
    """Add a client's digest and tenant, if they are not None, to a parsed `GenerateReqInput`; others are unchanged.

    It gets new sampling parameters.  If it has no custom parameters, those of the server's `preferred` ones, parsed,
    apply.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    def marked(params: Any) -> Any:
        given = (params if CUSTOM in params else preferred or {}).get(CUSTOM)
        if given is not None and not isinstance(given, dict):
            return params  # SGLang refuses it
        if wire.client_of(given) == client and tenant is None:
            return params
        if not given or wire.WIRE_KEY not in given:
            given = {**(given or {}), **wire.NO_FIELDS}
        return {**params, CUSTOM: wire.with_client(given, client, tenant)}

    if isinstance(obj, GenerateReqInput):
        params = obj.sampling_params
        if isinstance(params, list):
            obj.sampling_params = [marked(each) if isinstance(each, dict) else each for each in params]
        elif params is None or isinstance(params, dict):
            obj.sampling_params = marked(params or {})


def has_unparsed_fields(obj: Any) -> bool:
    """Return whether a request has specplug fields that are not parsed yet."""
    params = getattr(obj, "sampling_params", None)
    return any(map(_has_unparsed, params)) if isinstance(params, list) else _has_unparsed(params)


def _has_unparsed(params: Any) -> bool:
    given = params.get(CUSTOM) if isinstance(params, dict) else None
    return isinstance(given, dict) and arguments.has_fields(given)
