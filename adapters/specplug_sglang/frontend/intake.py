"""Hooks where SGLang accepts requests.  They validate specplug's fields before the scheduler sees a request.

Two hooks validate, in the processes that accept requests.  Every request passes `TokenizerManager.generate_request`.
``/generate`` starts its stream before that, so its endpoint validates too: an error is a status 400 for streams as
well.  The first hook that runs leaves the wire form, which the other skips.  SGLang drops OpenAI's `prediction` before
either, so a hook on OpenAI's endpoints reads it from the body.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from specplug.requests import clients, predicted
from specplug_sglang import seams
from specplug_sglang.config import is_requested

PARSER = "_specplug_parser"  # attribute of a TokenizerManager whose server enables specplug
_MARK = "_specplug_intake"
_HTTP = "sglang.srt.entrypoints.http_server"
_SHARES_ARGUMENTS = "sglang.srt.managers.multi_tokenizer_mixin.write_data_for_multi_tokenizer"


def install() -> None:
    """Install the hooks once this process launches a server that enables specplug; import nothing until then."""
    from sglang.srt.server_args import ServerArgs

    _wrap(ServerArgs, "check_server_args", _with_intake)


def install_request_hooks() -> None:
    """Patch SGLang's classes, once per process."""
    seams.require("api")
    clients.prepare()
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _wrap(TokenizerManager, "__init__", _with_parser)
    _wrap(TokenizerManager, "generate_request", _parsing_first)
    _wrap(TokenizerManager, "_calculate_spec_decoding_metrics", _counting_drafts)
    if _SHARES_ARGUMENTS not in HookRegistry._patched:
        HookRegistry.register(_SHARES_ARGUMENTS, _shared, HookType.BEFORE)
        HookRegistry.apply_hooks()
    if _HTTP in sys.modules:
        seams.require("http")
        _wrap(sys.modules[_HTTP], "serve_generate_request", _answering)
        from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase

        _wrap(OpenAIServingBase, "handle_request", _taking_predictions)


def _wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, _MARK):
        wrapped = around(original)
        setattr(wrapped, _MARK, True)
        setattr(owner, name, wrapped)


def _with_intake(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap the launch's check of the server's arguments, which runs before anything is built."""

    @functools.wraps(original)
    def check_server_args(self: Any) -> None:
        original(self)
        if is_requested(self):
            install_request_hooks()

    return check_server_args


def _with_parser(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        original(self, server_args, *args, **kwargs)
        if not is_requested(server_args):
            return
        from specplug_sglang.frontend.parsing import parser_of

        parser = parser_of(self)
        setattr(self, PARSER, parser)
        self.preferred_sampling_params = parser.preferred(self.preferred_sampling_params)
        if _HTTP in sys.modules:
            parser.prepare_for_serving()

    return init


def _parsing_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `generate_request`: parse specplug's fields and add the HTTP client's digest before SGLang's own code."""
    from specplug_sglang.frontend.parsing import has_unparsed_fields, is_held, with_client

    @functools.wraps(original)
    def generate_request(self: Any, obj: Any, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        parser = getattr(self, PARSER, None)
        if parser is None:
            return original(self, obj, request, *args, **kwargs)
        client = _client(request)

        def begin() -> Any:
            if client is not None:
                with_client(obj, client.digest, parser.tenant_of(client), self.preferred_sampling_params)
            return original(self, obj, request, *args, **kwargs)

        return _served(self, parser, obj, client, begin) if has_unparsed_fields(obj) or is_held(obj) else begin()

    return generate_request


def _client(request: Any) -> clients.RequestClient | None:
    return None if request is None else clients.RequestClient(request.headers.raw)


async def _served(
    manager: Any, parser: Any, obj: Any, client: clients.RequestClient | None, begin: Callable[[], Any]
) -> AsyncIterator[Any]:
    from specplug_sglang.frontend import usage
    from specplug_sglang.frontend.parsing import CUSTOM, has_unparsed_fields, release

    try:
        if has_unparsed_fields(obj):
            await parser.parse(obj, client)
        answers, of_request = begin(), predicted.current()
        if of_request is not None:
            of_request.read(obj.sampling_params.get(CUSTOM))
            answers = usage.counted(answers, of_request, pieces=obj.stream and manager.incremental_streaming_output)
        try:
            async for answer in answers:
                yield answer
        finally:
            await answers.aclose()
    finally:
        release(obj)


def _counting_drafts(original: Callable[..., None]) -> Callable[..., None]:
    """Report the draft tokens that were verified; SGLang reports as many per step as the longest draft may have."""

    @functools.wraps(original)
    def calculate(self: Any, meta_info: dict[str, Any], recv_obj: Any, i: int) -> None:
        original(self, meta_info, recv_obj, i)
        if hasattr(self, PARSER) and "spec_num_proposed_drafts" in meta_info:
            proposed = recv_obj.spec_num_cap_tokens[i] - recv_obj.spec_verify_ct[i]
            meta_info["spec_num_proposed_drafts"] = proposed
            meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / max(proposed, 1)

    return calculate


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    from specplug_sglang.frontend.parsing import has_unparsed_fields
    from specplug_sglang.frontend.refusal import BusyRequest, RefusedRequest

    @functools.wraps(original)
    async def serve_generate_request(obj: Any, request: Any) -> Any:
        module = sys.modules[_HTTP]
        parser = getattr(module.get_global_state().tokenizer_manager, PARSER, None)
        if parser is not None:
            client = _client(request)
            try:
                parser.tenant_of(client)  # refuses an invalid one
                if has_unparsed_fields(obj):
                    await parser.parse(obj, client)
            except (RefusedRequest, BusyRequest) as error:
                return module._create_error_response(error)
        return await original(obj, request)

    return serve_generate_request


def _taking_predictions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Read OpenAI's `prediction` from the body, because SGLang's request models omit it, and count it in `usage`."""
    from specplug_sglang.frontend import usage
    from specplug_sglang.frontend.refusal import RefusedRequest

    @functools.wraps(original)
    async def handle_request(self: Any, request: Any, raw_request: Any) -> Any:
        parser = getattr(self.tokenizer_manager, PARSER, None)
        # Requests through SGLang's gRPC bridge have no body.
        if parser is None or not hasattr(request, "custom_params"):
            return await original(self, request, raw_request)
        if hasattr(raw_request, "json"):
            body = await raw_request.json()  # cached since the request model was built
            prediction = body.get("prediction") if isinstance(body, dict) else None
            if prediction is not None:
                try:
                    request.custom_params = parser.with_prediction(request.custom_params, prediction)
                except RefusedRequest as error:
                    return self.create_error_response(str(error), err_type="BadRequest")
        of_request = predicted.begin()
        return usage.detailed(await original(self, request, raw_request), of_request)

    return handle_request


class _Information(dict[str, Any]):
    """Scheduler info for further tokenizer processes; unpickling it loads the plug-ins, which SGLang does not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self),)


def _shared(port_args: Any, server_args: Any, scheduler_info: dict[str, Any]) -> Any:
    return ((port_args, server_args, _Information(scheduler_info)), {}) if is_requested(server_args) else None


def _arrived(information: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    install_request_hooks()
    return information
