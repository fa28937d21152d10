"""Hooks where vLLM accepts requests.  They validate specplug's fields before the engine sees a request.

There are three hooks, in the front-end process.  The HTTP hook validates before the response begins, so that an error
is a status 400 for streams too; those of `AsyncLLM` and `InputProcessor` (which `LLM` uses) validate requests that
reach them directly.  The first hook that runs leaves the wire form in ``extra_args``, which the others skip.

Two more count the accepted and rejected tokens of OpenAI's predictions, which `usage` reports.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor

from specplug.errors import RequestError
from specplug.requests import arguments, clients, predicted, wire
from specplug.requests.parsing import FieldParser
from specplug.seams.seam import hook
from specplug.text.request_tokenizer import RequestTokenizer
from specplug_vllm import seams
from specplug_vllm.config import require_settings, runner_of, use_of
from specplug_vllm.worker import status

_PARSER = "_specplug_parser"  # attribute of an InputProcessor whose server enables specplug
_LIMIT = "_specplug_most_biases"  # attribute of a SpeculativeConfig whose runner applies min_p and logit_bias to drafts


class InvalidRequest(RequestError, VLLMValidationError, ValueError):
    """A request's specplug fields are invalid.  vLLM returns 400 for its own error type, and 500 for others."""


class OverloadedRequest(InvalidRequest):
    """A request's references are too many at the moment.  It is a 429 where vLLM checks the model's name first."""


@functools.cache
def install() -> None:
    """Hook vLLM's classes, once per process."""
    clients.prepare()
    hook(InputProcessor, "__init__", _init_processor)
    hook(InputProcessor, "process_inputs", _process_inputs)
    hook(AsyncLLM, "__init__", _init_engine)
    hook(AsyncLLM, "add_request", _add_request)
    hook(SamplingParams, "_validate_spec_decode", _validate_spec_decode)
    status.export_metrics()


@functools.cache
def _open_http() -> None:
    seams.require("http")
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    from specplug_vllm.frontend import endpoints, tool_streams

    endpoints.install()
    tool_streams.install()
    hook(GenerateBaseServing, "_check_model", _check_model)
    hook(AsyncLLM, "generate", _generate)
    hook(UsageInfo, "__init__", _init_usage)


def _init_processor(original: Callable[..., None], processor: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    original(processor, vllm_config, *args, **kwargs)
    if not use_of(vllm_config):
        return
    model = vllm_config.model_config
    tokenizer = RequestTokenizer(functools.partial(cached_tokenizer_from_config, model))
    settings = require_settings(vllm_config)
    parser = FieldParser(settings, model.get_vocab_size(), tokenizer, InvalidRequest, OverloadedRequest)
    setattr(processor, _PARSER, parser)
    if use_of(vllm_config) == "proposers" and runner_of(vllm_config) == "v2":
        from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

        setattr(vllm_config.speculative_config, _LIMIT, MAX_NUM_LOGIT_BIAS_TOKENS)


def _init_engine(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
    original(engine, *args, **kwargs)
    parser = _parser(engine)
    if parser is not None:
        _open_http()
        parser.prepare_for_serving()


def _process_inputs(
    original: Callable[..., Any], processor: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any
) -> Any:
    parser: FieldParser | None = getattr(processor, _PARSER, None)
    if parser is not None and arguments.has_fields(_extra_args(params)):
        params = _with_extra_args(params, parser.parse_fields(params.extra_args))
    return original(processor, request_id, prompt, params, *args, **kwargs)


async def _add_request(
    original: Callable[..., Any], engine: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any
) -> Any:
    parser = _parser(engine)
    client = clients.current_client()
    if parser is not None and arguments.has_fields(_extra_args(params)):
        copies = getattr(params, "n", None) or 1
        params = _with_extra_args(params, await parser.admit(params.extra_args, client, copies))
    if parser is not None and client is not None and hasattr(params, "extra_args"):
        tenant = parser.tenant_of(client)
        if client.digest is not None or tenant is not None:
            params = _with_extra_args(params, wire.with_client(params.extra_args, client.digest, tenant))
    return await original(engine, request_id, prompt, params, *args, **kwargs)


async def _check_model(original: Callable[..., Any], serving: Any, request: Any) -> Any:
    """Parse once the check has passed that every generating endpoint awaits first.

    The parts of a split request are validated when they reach `AsyncLLM`.
    """
    refusal = await original(serving, request)
    parser = _parser(serving)
    if refusal is not None or parser is None:
        return refusal
    holder = request
    name = "vllm_xargs"
    if not hasattr(request, "to_sampling_params"):
        holder = getattr(request, "sampling_params", None)
        name = "extra_args"
    given: Any = getattr(holder, name, None)
    prediction = getattr(request, "prediction", None)  # OpenAI's field, which vLLM keeps and does not use
    if prediction is not None and holder is request:
        given = parser.with_prediction(given, prediction)
    client = clients.current_client()
    if client is not None:
        parser.tenant_of(client)  # refuses an invalid one
    if arguments.has_fields(given):
        try:
            outlives = request if getattr(request, "background", False) else None
            setattr(holder, name, await parser.admit(given, client, _copies(request, holder), outlives))
            if (of_request := predicted.current_prediction()) is not None:
                of_request.read(getattr(holder, name))
        except OverloadedRequest as error:
            return serving.create_error_response(str(error), "TooManyRequestsError", HTTPStatus.TOO_MANY_REQUESTS)
    return None


def _copies(request: Any, holder: Any) -> int:
    """Return how many requests of the engine an HTTP request becomes: one for each prompt and sample."""
    prompt = getattr(request, "prompt", None)
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * (getattr(holder, "n", None) or 1)


def _validate_spec_decode(original: Callable[..., None], params: Any, speculative_config: Any) -> None:
    """Allow min_p and logit_bias, which vLLM refuses with speculation, if the runner applies them to every draft.

    V2 masks and biases the logits row by row, one row per draft position, with the request's own values: neither
    depends on the position, so verification draws from the distribution of plain decoding.  V1 applies neither.
    """
    most = getattr(speculative_config, _LIMIT, None)
    if most is None:
        original(params, speculative_config)
    elif params.logit_bias and len(params.logit_bias) > most:
        # Otherwise the worker would raise, which ends the engine.
        raise InvalidRequest(f"too many entries in logit_bias; found {len(params.logit_bias)}; expected at most {most}")


def _parser(owner: Any) -> FieldParser | None:
    """Return the parser of the input processor that an engine or an endpoint uses."""
    return getattr(getattr(owner, "input_processor", None), _PARSER, None)


def _extra_args(params: Any) -> Any:
    return getattr(params, "extra_args", None)  # pooling parameters hold no fields of specplug


def _with_extra_args(params: Any, extra_args: dict[str, Any]) -> Any:
    """Return a copy with other extra arguments, as the caller may reuse `params` for more requests."""
    changed = copy.copy(params)
    changed.extra_args = extra_args
    return changed


def _generate(
    original: Callable[..., AsyncIterator[Any]], engine: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Let a prediction's counts take in the tokens of its completions."""
    outputs = original(engine, *args, **kwargs)
    of_request = predicted.current_prediction()
    return outputs if of_request is None or not of_request.details() else _counted(outputs, of_request)


async def _counted(outputs: AsyncIterator[Any], of_request: predicted.Predicted) -> AsyncIterator[Any]:
    """Pass outputs on, each with the tokens since the one before, as HTTP requests want them."""
    try:
        async for output in outputs:
            for completion in output.outputs:
                of_request.extend((output.request_id, completion.index), completion.token_ids)
            yield output
    finally:
        await outputs.aclose()  # type: ignore[attr-defined]


def _init_usage(original: Callable[..., None], usage: Any, **fields: Any) -> None:
    from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo

    original(usage, **fields)
    of_request = predicted.current_prediction()
    if of_request is not None and (counts := of_request.details()):
        known = usage.completion_tokens_details
        given = {**(known.model_dump() if known else {}), **counts}
        usage.completion_tokens_details = CompletionTokenUsageInfo(**given)
