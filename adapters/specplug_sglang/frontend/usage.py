"""OpenAI's counts of accepted and rejected prediction tokens, in `usage` of chat completions and completions.

SGLang's model of `usage` has no such fields, so they are added to complete answers, and to a stream's events with a
`usage`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from specplug.requests.predicted import Predicted


async def counted(answers: AsyncIterator[Any], of_request: Predicted, *, pieces: bool) -> AsyncIterator[Any]:
    """Pass answers of `generate_request` on, and let a prediction's counts take in their tokens.

    Args:
        answers: each one dict or a list of them.
        of_request: the prediction.
        pieces: whether each answer has the tokens since the one before, instead of all so far.
    """
    known: dict[Any, int] = {}
    try:
        async for answer in answers:
            for each in answer if isinstance(answer, list) else [answer]:
                ids, name = each.get("output_ids", ()), each["meta_info"]["id"]
                of_request.extend(name, ids if pieces else ids[known.get(name, 0) :])
                known[name] = len(ids)
            yield answer
    finally:
        await answers.aclose()  # type: ignore[attr-defined]


def detailed(answer: Any, of_request: Predicted) -> Any:
    """Return what OpenAI's endpoints answered, with the counts in its `usage`, or in its stream's."""
    if hasattr(answer, "body_iterator"):
        answer.body_iterator = _events(answer.body_iterator, of_request)
        return answer
    counts = of_request.details()
    if not counts or getattr(answer, "usage", None) is None:
        return answer
    return _with_counts(answer.model_dump(mode="json", by_alias=True), counts)


async def _events(events: AsyncIterator[Any], of_request: Predicted) -> AsyncIterator[Any]:
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
