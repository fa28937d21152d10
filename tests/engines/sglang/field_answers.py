"""Functions of `test_fields` that run in an engine's process."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np

from tests.engines.sglang import trees, watching
from tests.engines.sglang.inside import flush, in_scheduler

OWN = ("id", "e2e_latency", "cached_tokens", "cached_tokens_details", "num_retractions", "weight_version")
"""What `meta_info` says of how a request ran and not of its answer, beside times and counts of speculation."""


def answered(engine: Any, batches: list[list[dict[str, Any]]], deterministic: bool = False) -> list[dict[str, Any]]:
    """Answer batches of requests one after another, the requests of a batch in shared steps.

    Args:
        batches: requests as fields of `GenerateReqInput`.
        deterministic: draw by seeds, as with `--enable-deterministic-inference`.

    Returns:
        per batch and request "outputs", one per answer, "proposed" and "correct" draft tokens, or "refused", a message.
    """
    _within(engine, trees.be_deterministic, really=deterministic)
    try:
        return [one for batch in batches for one in _batch(engine, batch)]
    finally:
        _within(engine, trees.be_deterministic, really=False)


def _within(engine: Any, function: Any, **arguments: Any) -> None:
    in_scheduler(engine, f"{function.__module__}:{function.__qualname__}", arguments)


def _batch(engine: Any, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert flush(engine)
    if len(batch) > 1:
        _within(engine, watching.hold_back, count=len(batch))

    async def all_of_them() -> list[dict[str, Any]]:
        return await asyncio.gather(*(_answer(engine, given) for given in batch))

    return list(engine.loop.run_until_complete(all_of_them()))


async def _answer(engine: Any, given: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    if given.get("custom_logit_processor"):
        given = {**given, "custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()}
    try:
        found = await anext(engine.tokenizer_manager.generate_request(GenerateReqInput(**given), None))
    except Exception as error:
        return {"refused": str(error)}
    outputs = found if isinstance(found, list) else [found]
    metas = [output["meta_info"] for output in outputs]
    counts = [sum(meta.get(f"spec_num_{kind}_drafts", 0) for meta in metas) for kind in ("proposed", "correct")]
    return {"outputs": list(map(_stated, outputs)), "proposed": counts[0], "correct": counts[1]}


def _stated(output: dict[str, Any]) -> dict[str, Any]:
    meta = {
        name: _numbers(value, "<f4" if "_val_" in name else "<i4") if name.endswith("_b64") else value
        for name, value in output["meta_info"].items()
        if name not in OWN and not name.startswith("spec_") and not name.endswith(("_time", "_ts", "latency"))
    }
    return json.loads(json.dumps({**output, "output_ids": list(output["output_ids"]), "meta_info": meta}, default=str))


def _numbers(encoded: str | None, dtype: str) -> list[float] | None:
    return None if encoded is None else np.frombuffer(base64.b64decode(encoded), dtype=dtype).tolist()


def defined(engine: Any) -> dict[str, list[str]]:
    """Return the names of the fields that SGLang defines, by their class."""
    from dataclasses import fields

    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    return {
        "SamplingParams": list(SamplingParams.__struct_fields__),
        "GenerateReqInput": [field.name for field in fields(GenerateReqInput)],
        "CompletionRequest": list(CompletionRequest.model_fields),
        "ChatCompletionRequest": list(ChatCompletionRequest.model_fields),
    }


def converted(engine: Any, values: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return, by class of OpenAI's requests and by field, the fields of `GenerateReqInput` that its value sets."""
    from sglang.srt.entrypoints.openai import protocol
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion

    found = {}
    for kind, serving, needed in (
        (protocol.CompletionRequest, OpenAIServingCompletion, {"model": "m", "prompt": "b"}),
        (
            protocol.ChatCompletionRequest,
            OpenAIServingChat,
            {"model": "m", "messages": [{"role": "user", "content": "b"}]},
        ),
    ):
        serves = serving(engine.tokenizer_manager, engine.template_manager)

        def fields(given: dict[str, Any], kind: Any = kind, serves: Any = serves) -> dict[str, Any]:
            made = vars(serves._convert_to_internal_request(kind(**given), None)[0])
            return {**made, **made["sampling_params"]}

        plain = fields(needed)
        found[kind.__name__] = {
            name: [each for each, now in fields({**needed, name: value}).items() if now != plain.get(each)]
            for name, value in values.items()
            if name in kind.model_fields
        }
    return found
