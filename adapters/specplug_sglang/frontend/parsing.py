"""A request's specplug fields, which are in `custom_params` of its sampling parameters, from text to wire form.

SGLang sends requests to its scheduler by pickle, or by msgpack (``SGLANG_USE_PICKLE_IPC=0``), which takes texts,
numbers, and flat lists and mappings of them: a scheduler that gets anything else ends.  The packed form passes both.
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
    """Parses the fields of one server's requests; what it makes of them passes through SGLang's transport."""

    @property
    def tokenizer(self) -> RequestTokenizer:
        """The server's, for texts of any length, on any thread."""
        return self._tokenizer

    def parsed(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return custom parameters with specplug's fields in their packed form.

        Raises:
            RefusedRequest: the fields are wrong.
        """
        return wire.packed(super().parsed(extra_args))

    async def parse(self, obj: Any) -> None:
        """Put the packed form into the sampling parameters of a `GenerateReqInput`, which gets new ones.

        Every mapping of custom parameters is parsed once, for however many requests it stands.

        Raises:
            RefusedRequest: the fields are wrong.
        """
        done: dict[int, dict[str, Any]] = {}

        async def changed(params: Any) -> Any:
            if not _say_something(params):
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
        """Return the sampling parameters that a server prefers, parsed.

        Raises:
            RefusedRequest: their fields are wrong.
        """
        return {**params, CUSTOM: self.parsed(params[CUSTOM])} if _say_something(params) else params


def parser_of(manager: Any) -> Parser:
    """Return what parses the requests of a `TokenizerManager`, which is made."""
    tokenizer = RequestTokenizer(lambda: manager.tokenizer)
    return Parser(resolved(manager.server_args), manager.model_config.vocab_size, tokenizer, RefusedRequest)


def with_client(obj: Any, client: str, preferred: Any) -> None:
    """Let a parsed request say which client it comes from, by sampling parameters that are new.

    Args:
        obj: a `GenerateReqInput`; a request for something else stays as it is.
        client: a digest, see `specplug.requests.clients`.
        preferred: the server's, parsed, whose custom parameters hold where a request has none.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    def marked(params: Any) -> Any:
        given = (params if CUSTOM in params else preferred or {}).get(CUSTOM)
        if given is not None and not isinstance(given, dict):
            return params  # SGLang's to refuse
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


def says_something(obj: Any) -> bool:
    """Whether a request says anything to specplug that is not parsed yet."""
    params = getattr(obj, "sampling_params", None)
    return any(map(_say_something, params)) if isinstance(params, list) else _say_something(params)


def _say_something(params: Any) -> bool:
    given = params.get(CUSTOM) if isinstance(params, dict) else None
    return isinstance(given, dict) and arguments.are_given(given)
