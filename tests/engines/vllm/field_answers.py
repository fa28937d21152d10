"""Requests of the standing test inside an engine's process; see `test_fields`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.vllm import inside, watching

Given = dict[str, Any]


def answered(llm: Any, batches: list[list[Given]], dropped: str = "") -> list[dict[str, Any]]:
    """Answer batches one after the other; the requests of a batch share steps.

    Args:
        llm: the engine.
        batches: requests with a "prompt", "params" and maybe a "salt" that keeps others' cached prompts away.
        dropped: the guard that is left out meanwhile, as "module:Class.method".

    Returns:
        Per batch "answers" and, with specplug, how many draft tokens were "proposed" for them.
    """
    drafts = hasattr(inside.runner(llm), "speculator") or hasattr(inside.runner(llm), "drafter")
    counted = watching.drafting(llm).stage.metrics if drafts and llm.llm_engine.vllm_config.speculative_config else None
    found = []
    for number, batch in enumerate(batches):
        before = counted.snapshot() if counted else None
        with without(dropped):
            answers = _together(llm.llm_engine, batch, number)
        after = (counted.snapshot() - before).as_dict()["total"] if counted else {"proposed": 0}
        found.append({"answers": answers, "proposed": after["proposed"]})
    return found


@contextmanager
def without(guard: str) -> Iterator[None]:
    """Take a hook off, or let a check of drafts allow everything."""
    with pytest.MonkeyPatch.context() as patch:
        if guard:
            module, _, path = guard.partition(":")
            owner = getattr(importlib.import_module(module), path.partition(".")[0])
            name = path.partition(".")[2]
            original = inspect.unwrap(getattr(owner, name))
            patch.setattr(owner, name, PERMIT.get(name, original))
        yield


PERMIT: dict[str, Any] = {
    "allow_drafts": lambda *_: True,
    "cut": lambda *_: None,
    "_validate_spec_decode": lambda *_: None,
}


def _together(engine: Any, batch: list[Given], number: int) -> list[Any]:
    from vllm.exceptions import VLLMValidationError

    answers: list[Any] = [{"parts": 0} for _ in batch]
    for place, given in enumerate(batch):
        prompt = {"prompt_token_ids": given["prompt"], **({"cache_salt": given["salt"]} if "salt" in given else {})}
        try:
            engine.add_request(f"{number}.{place}", prompt, params_of(given))
        except (ValueError, VLLMValidationError) as error:
            answers[place] = {"refused": str(error)}
    while engine.has_unfinished_requests():
        for output in engine.step():
            _add(answers[int(output.request_id.partition(".")[2])], output)
    return answers


def params_of(given: Given) -> Any:
    """Return `SamplingParams` of JSON values; an answer comes as a whole unless said otherwise."""
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind

    own = dict(given["params"])
    own["output_kind"] = RequestOutputKind[own.get("output_kind", "FINAL_ONLY")]
    if "repetition_detection" in own:
        own["repetition_detection"] = RepetitionDetectionParams(**own["repetition_detection"])
    if "prompt_logprob_token_ids" in own:  # the same for each token of the prompt
        rows = len(given["prompt"]) - 1 - own.get("prompt_logprob_start", 0)
        own["prompt_logprob_token_ids"] = [own["prompt_logprob_token_ids"]] * rows
    return inside.sampling(own)


def _add(answer: dict[str, Any], output: Any) -> None:
    """Put a part of an answer behind those before."""
    parts = [{**inside.described(one), "logprobs as": type(one.logprobs).__name__} for one in output.outputs]
    for place, part in enumerate(parts):
        earlier = answer.get("outputs", [{}] * len(parts))[place]
        for name in {"token_ids", "text", "logprobs"} & earlier.keys():
            part[name] = earlier[name] + part[name]
    scores = output.prompt_token_id_logprobs
    answer |= {
        "outputs": parts,
        "parts": answer["parts"] + 1,
        "usage": [len(output.prompt_token_ids), output.num_cached_tokens, sum(len(one["token_ids"]) for one in parts)],
        "prompt_logprobs": [
            None if step is None else {str(token): entry.logprob for token, entry in step.items()}
            for step in output.prompt_logprobs or ()
        ],
        "prompt_scores": None if scores is None else [[float(value) for value in row] for row in scores],
    }
