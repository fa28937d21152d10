"""Hooks where SGLang accepts requests.  They validate specplug's fields before the scheduler sees a request.

Two hooks validate, in the processes that accept requests.  Every request passes `TokenizerManager.generate_request`.
``/generate`` starts its stream before that, so its endpoint validates too: an error is a status 400 for streams as
well.  The first hook that runs leaves the wire form, which the other skips.  SGLang drops OpenAI's `prediction` before
either, so a hook on OpenAI's endpoints reads it from the body.  SGLang's model of `usage` has no counts of a
prediction's tokens either: they are added to complete answers, and to a stream's events with a `usage`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from specplug.requests import clients, predicted
from specplug.seams.seam import hook
from specplug_sglang import seams
from specplug_sglang.config import use_of

PARSER = "_specplug_parser"  # attribute of a TokenizerManager whose server enables specplug
_HTTP = "sglang.srt.entrypoints.http_server"
_SHARES_ARGUMENTS = "sglang.srt.managers.multi_tokenizer_mixin.write_data_for_multi_tokenizer"


def install() -> None:
    """Install the hooks once this process launches a server that enables specplug; import nothing until then."""
    from sglang.srt.server_args import ServerArgs

    hook(ServerArgs, "check_server_args", _check_server_args)


def install_request_hooks() -> None:
    """Hook SGLang's classes, once per process."""
    seams.require("api")
    clients.prepare()
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hook(TokenizerManager, "__init__", _init_manager)
    hook(TokenizerManager, "generate_request", _generate_request)
    hook(TokenizerManager, "_calculate_spec_decoding_metrics", _count_drafts)
    if _SHARES_ARGUMENTS not in HookRegistry._patched:
        HookRegistry.register(_SHARES_ARGUMENTS, _shared, HookType.BEFORE)
        HookRegistry.apply_hooks()
    if _HTTP in sys.modules:
        seams.require("http")
        hook(sys.modules[_HTTP], "serve_generate_request", _serve_generate_request)
        from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase

        hook(OpenAIServingBase, "handle_request", _handle_request)


def _check_server_args(original: Callable[..., None], server_args: Any) -> None:
    original(server_args)
    if use_of(server_args):
        install_request_hooks()


def _init_manager(original: Callable[..., None], manager: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    original(manager, server_args, *args, **kwargs)
    if not use_of(server_args):
        return
    from specplug_sglang.frontend.parsing import parser_of

    parser = parser_of(manager)
    setattr(manager, PARSER, parser)
    manager.preferred_sampling_params = parser.preferred(manager.preferred_sampling_params)
    if _HTTP in sys.modules:
        parser.prepare_for_serving()


def _generate_request(
    original: Callable[..., Any], manager: Any, obj: Any, request: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Parse specplug's fields and add the HTTP client's digest before SGLang's own code."""
    parser = getattr(manager, PARSER, None)
    if parser is None:
        return original(manager, obj, request, *args, **kwargs)
    from specplug_sglang.frontend.parsing import has_unparsed_fields, is_held, with_client

    client = _client(request)

    def begin() -> Any:
        if client is not None:
            with_client(obj, client.digest, parser.tenant_of(client), manager.preferred_sampling_params)
        return original(manager, obj, request, *args, **kwargs)

    return _served(manager, parser, obj, client, begin) if has_unparsed_fields(obj) or is_held(obj) else begin()


def _client(request: Any) -> clients.RequestClient | None:
    """Return the client of an HTTP request; None without one, and for the gRPC bridge, whose headers are others."""
    raw = None if request is None else getattr(request.headers, "raw", None)
    return None if raw is None else clients.RequestClient(raw)


async def _served(
    manager: Any, parser: Any, obj: Any, client: clients.RequestClient | None, begin: Callable[[], Any]
) -> AsyncIterator[Any]:
    from specplug_sglang.frontend.parsing import CUSTOM, has_unparsed_fields, release

    try:
        if has_unparsed_fields(obj):
            await parser.parse(obj, client)
        answers = begin()
        of_request = predicted.current_prediction()
        if of_request is not None:
            of_request.read(obj.sampling_params.get(CUSTOM))
            answers = counted(answers, of_request, pieces=obj.stream and manager.incremental_streaming_output)
        try:
            async for answer in answers:
                yield answer
        finally:
            await answers.aclose()
    finally:
        release(obj)


def _count_drafts(
    original: Callable[..., None], manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Report the draft tokens that were verified; SGLang reports as many per step as the longest draft may have."""
    original(manager, meta_info, recv_obj, i)
    if hasattr(manager, PARSER) and "spec_num_proposed_drafts" in meta_info:
        proposed = recv_obj.spec_num_cap_tokens[i] - recv_obj.spec_verify_ct[i]
        meta_info["spec_num_proposed_drafts"] = proposed
        meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / max(proposed, 1)


async def _serve_generate_request(original: Callable[..., Any], obj: Any, request: Any) -> Any:
    from specplug_sglang.frontend.parsing import BusyRequest, RefusedRequest, has_unparsed_fields

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


async def _handle_request(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any) -> Any:
    """Read OpenAI's `prediction` from the body, because SGLang's request models omit it, and count it in `usage`."""
    parser = getattr(serving.tokenizer_manager, PARSER, None)
    # Requests through SGLang's gRPC bridge have no body.
    if parser is None or not hasattr(request, "custom_params"):
        return await original(serving, request, raw_request)
    from specplug_sglang.frontend.parsing import RefusedRequest

    if hasattr(raw_request, "json"):
        body = await raw_request.json()  # cached since the request model was built
        prediction = body.get("prediction") if isinstance(body, dict) else None
        if prediction is not None:
            try:
                request.custom_params = parser.with_prediction(request.custom_params, prediction)
            except RefusedRequest as error:
                return serving.create_error_response(str(error), err_type="BadRequest")
    of_request = predicted.begin()
    return detailed(await original(serving, request, raw_request), of_request)


async def counted(answers: AsyncIterator[Any], of_request: predicted.Predicted, *, pieces: bool) -> AsyncIterator[Any]:
    """Pass answers of `generate_request`, a dict or a list each, on, and count their tokens for a prediction.

    In `pieces` each answer has the tokens since the one before, instead of all so far.
    """
    known: dict[Any, int] = {}
    try:
        async for answer in answers:
            for each in answer if isinstance(answer, list) else [answer]:
                ids = each.get("output_ids", ())
                name = each["meta_info"]["id"]
                of_request.extend(name, ids if pieces else ids[known.get(name, 0) :])
                known[name] = len(ids)
            yield answer
    finally:
        await answers.aclose()  # type: ignore[attr-defined]


def detailed(answer: Any, of_request: predicted.Predicted) -> Any:
    """Return what OpenAI's endpoints answered, with the counts in its `usage`, or in its stream's."""
    if hasattr(answer, "body_iterator"):
        answer.body_iterator = _events(answer.body_iterator, of_request)
        return answer
    counts = of_request.details()
    if not counts or getattr(answer, "usage", None) is None:
        return answer
    return _with_counts(answer.model_dump(mode="json", by_alias=True), counts)


async def _events(events: AsyncIterator[Any], of_request: predicted.Predicted) -> AsyncIterator[Any]:
    async for event in events:
        counts = of_request.details()
        text = event.decode() if isinstance(event, bytes) else event
        if counts and '"usage":{' in text and text.startswith("data: "):
            yield f"data: {json.dumps(_with_counts(json.loads(text[6:]), counts))}\n\n"
        else:
            yield event


def _with_counts(answer: dict[str, Any], counts: dict[str, int]) -> dict[str, Any]:
    usage = answer["usage"]
    usage["completion_tokens_details"] = {**(usage.get("completion_tokens_details") or {}), **counts}
    return answer


class _Information(dict[str, Any]):
    """Scheduler info for further tokenizer processes; unpickling it loads the plug-ins, which SGLang does not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self),)


def _shared(port_args: Any, server_args: Any, scheduler_info: dict[str, Any]) -> Any:
    return ((port_args, server_args, _Information(scheduler_info)), {}) if use_of(server_args) else None


def _arrived(information: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    install_request_hooks()
    return information
