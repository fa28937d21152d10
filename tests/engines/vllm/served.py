"""What `tests.engines.suites.served` runs in vLLM's process."""

from __future__ import annotations

from typing import Any

from tests.engines.suites.served import Answer, Params, Records, wrong_texts
from tests.engines.vllm import inside, watching
from tests.engines.vllm.watching import counts

__all__ = ["answers", "counted", "counts", "recorded"]


def answers(llm: Any, prompts: list[Any], params: list[Params], together: bool = True) -> list[Answer]:
    """Answer all prompts, which always begin together; several answers to one prompt follow each other."""
    inputs = [inside.prompt_of(prompt) for prompt in prompts]  # those of other kinds are as vLLM takes them
    return [
        {
            **inside.described(completion),
            "cached": output.num_cached_tokens,
            "prompt_logprobs": [
                None if step is None else {str(token): entry.logprob for token, entry in step.items()}
                for step in output.prompt_logprobs or ()
            ],
        }
        for output in llm.generate(inputs, [inside.sampling(own) for own in params], use_tqdm=False)
        for completion in output.outputs
    ]


def counted(llm: Any, prompts: list[list[int]], params: list[Params]) -> dict[str, Any]:
    """Do as `answers`, and count meanwhile.

    "accepted_by_vllm" is vLLM's own count of accepted draft tokens, padding included.
    """
    accepted = "vllm:spec_decode_num_accepted_tokens"
    before = inside.metrics(llm)[accepted]
    with watching.counting(llm) as grown:
        outputs = answers(llm, prompts, params)
    return {"answers": outputs, "accepted_by_vllm": inside.metrics(llm)[accepted] - before, **grown}


def recorded(llm: Any, requests: Records, aborts: dict[str, list[Any]] | None = None) -> dict[str, Any]:
    """Do as `Served.recorded` says; see `watching.recording`."""
    with watching.recording(llm) as records, watching.counting(llm) as grown:
        outputs = inside.drive(llm, requests, aborts)
    finals = {one["id"]: [*one["prompt"], *outputs[one["id"]]["token_ids"]] for one in requests}
    wrong = wrong_texts(records, finals)
    return {"outputs": outputs, "records": records, "wrong": wrong, "left": _left(llm), "counts": grown}


def _left(llm: Any) -> dict[str, int]:
    """Return what is held of ended requests; the newest one is forgotten by the step behind it."""
    drafting = watching.drafting(llm)
    assert len(drafting.slots.occupants) == len(drafting.allocator)
    return {"places": max(0, len(drafting.allocator) - 1), "waiting": len(drafting.allocator._waiting)}
