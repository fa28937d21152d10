"""Parser of a request's specplug fields, in `custom_params` of its sampling parameters, to their wire form.

SGLang sends requests to its scheduler by pickle, or by msgpack (``SGLANG_USE_PICKLE_IPC=0``), which accepts only
strings, numbers, and flat lists and mappings of them; anything else ends the scheduler.  The packed form passes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specplug.requests import arguments, parser, wire
from specplug.text.request_tokenizer import RequestTokenizer
from specplug_sglang.config import resolved
from specplug_sglang.frontend.refusal import RefusedRequest

CUSTOM = "custom_params"


class Parser(parser.Parser):
    """Parses the fields of one server's requests to a form that SGLang's transport accepts."""

    @property
    def tokenizer(self) -> RequestTokenizer:
        """The server's tokenizer, for texts of any length, on any thread."""
        return self._tokenizer

    def parsed(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return custom parameters with specplug's fields in their packed form.

        Raises:
            RefusedRequest: the fields are invalid.
        """
        return wire.packed(super().parsed(extra_args))

    async def parse(self, obj: Any) -> None:
        """Replace the sampling parameters of a `GenerateReqInput` by new ones with the packed form.

        A mapping of custom parameters that several requests share is parsed once.

        Raises:
            RefusedRequest: the fields are invalid.
        """
        done: dict[int, dict[str, Any]] = {}

        async def changed(params: Any) -> Any:
            if not _has_unparsed(params):
                return params
            given = params[CUSTOM]
            if id(given) not in done:
                done[id(given)] = await self.parsed_beside(given)
            return {**params, CUSTOM: done[id(given)]}

        params = obj.sampling_params
        if isinstance(params, list):
            obj.sampling_params = [await changed(each) for each in params]
        else:
            obj.sampling_params = await changed(params)

    def preferred(self, params: Any) -> Any:
        """Return a server's preferred sampling parameters, parsed.

        Raises:
            RefusedRequest: their fields are invalid.
        """
        return {**params, CUSTOM: self.parsed(params[CUSTOM])} if _has_unparsed(params) else params


def parser_of(manager: Any) -> Parser:
    """Return the parser for the requests of an initialised `TokenizerManager`."""
    tokenizer = RequestTokenizer(lambda: manager.tokenizer)
    return Parser(resolved(manager.server_args), manager.model_config.vocab_size, tokenizer, RefusedRequest)


def with_client(obj: Any, client: str, preferred: Any) -> None:
    """Add the client's digest to a parsed request, in new sampling parameters.

    Args:
        obj: a `GenerateReqInput`; other requests are unchanged.
        client: a digest, see `specplug.requests.clients`.
        preferred: the server's preferred sampling parameters, parsed; their custom parameters apply if a request has
            none.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    def marked(params: Any) -> Any:
        given = (params if CUSTOM in params else preferred or {}).get(CUSTOM)
        if given is not None and not isinstance(given, dict):
            return params  # SGLang refuses it
        if wire.client_of(given) == client:
            return params
        if not given or wire.WIRE_KEY not in given:
            given = wire.packed({**(given or {}), **wire.NO_FIELDS})
        return {**params, CUSTOM: wire.with_client(given, client)}

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
    return isinstance(given, dict) and arguments.are_given(given)
