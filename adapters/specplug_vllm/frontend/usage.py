"""OpenAI's counts of accepted and rejected prediction tokens, in `usage` of chat completions and completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from specplug.requests import predicted
from specplug.seams.hook import hook


def install() -> None:
    """Hook the streams of completions and the class of `usage`, once per process."""
    from vllm.entrypoints.serve.engine import protocol
    from vllm.v1.engine.async_llm import AsyncLLM

    hook(AsyncLLM, "generate", _generate)
    hook(protocol.UsageInfo, "__init__", _init_usage)


def _generate(
    original: Callable[..., AsyncIterator[Any]], engine: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Let a prediction's counts take in the tokens of its completions."""
    outputs, of_request = original(engine, *args, **kwargs), predicted.current()
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
    of_request = predicted.current()
    if of_request is not None and (counts := of_request.details()):
        known = usage.completion_tokens_details
        given = {**(known.model_dump() if known else {}), **counts}
        usage.completion_tokens_details = CompletionTokenUsageInfo(**given)
