"""OpenAI's counts of accepted and rejected prediction tokens, in `usage` of chat completions and completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from specplug.requests import predicted


def install() -> None:
    """Hook the streams of completions and the class of `usage`, once per process."""
    from vllm.entrypoints.serve.engine import protocol
    from vllm.v1.engine.async_llm import AsyncLLM

    AsyncLLM.generate = _read(AsyncLLM.generate)
    protocol.UsageInfo.__init__ = _detailed(protocol.UsageInfo.__init__, protocol.CompletionTokenUsageInfo)


def _read(original: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap `generate`: let a prediction's counts take in the tokens of its completions."""

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        outputs, of_request = original(self, *args, **kwargs), predicted.current()
        return outputs if of_request is None or not of_request.details() else _counted(outputs, of_request)

    return generate


async def _counted(outputs: AsyncIterator[Any], of_request: predicted.Predicted) -> AsyncIterator[Any]:
    """Pass outputs on, each with the tokens since the one before, as HTTP requests want them."""
    try:
        async for output in outputs:
            for completion in output.outputs:
                of_request.extend((output.request_id, completion.index), completion.token_ids)
            yield output
    finally:
        await outputs.aclose()  # type: ignore[attr-defined]


def _detailed(original: Callable[..., None], details: Any) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, **fields: Any) -> None:
        original(self, **fields)
        of_request = predicted.current()
        if of_request is not None and (counts := of_request.details()):
            known = self.completion_tokens_details
            self.completion_tokens_details = details(**{**(known.model_dump() if known else {}), **counts})

    return init
