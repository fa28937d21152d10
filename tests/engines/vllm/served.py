"""vLLM in the words of the suites; see `tests.engines.suites.served`."""

from __future__ import annotations

from typing import Any

from tests.engines.suites import served
from tests.engines.suites.served import Answer, Params, Records, wrong_texts
from tests.engines.vllm import inside, watching


class Served(served.Served):
    """vLLM in one process."""

    def translated(self, params: Params) -> Params:
        own = {name: value for name, value in params.items() if name not in ("specplug", "reasoning")}
        return own | ({"extra_args": {"specplug": params["specplug"]}} if params.get("specplug") else {})

    def counts(self) -> dict[str, Any]:
        return self.engine.call("watching.snapshot")

    def _generate(self, prompts: list[list[int]], params: list[Params], together: bool) -> list[Answer]:
        return self.engine.call(answers, prompts=prompts, params=params)

    def _counted(self, prompts: list[list[int]], params: list[Params]) -> dict[str, Any]:
        return self.engine.call(counted, prompts=prompts, params=params)

    def _recorded(self, requests: Records, aborts: dict[str, list[Any]]) -> dict[str, Any]:
        return self.engine.call(recorded, requests=requests, aborts=aborts)


# -- inside the engine's process -------------------------------------------------------------------------------------


def answers(llm: Any, prompts: list[list[int]], params: list[Params]) -> list[Answer]:
    """Answer all prompts; several answers to one prompt follow each other."""
    given = [inside.prompt_of(prompt) for prompt in prompts]  # those of other kinds are as vLLM takes them
    return [
        {
            **inside.described(completion),
            "cached": output.num_cached_tokens,
            "prompt_logprobs": [
                None if step is None else {str(token): entry.logprob for token, entry in step.items()}
                for step in output.prompt_logprobs or ()
            ],
        }
        for output in llm.generate(given, [inside.sampling(own) for own in params], use_tqdm=False)
        for completion in output.outputs
    ]


def counted(llm: Any, prompts: list[list[int]], params: list[Params]) -> dict[str, Any]:
    """Do as `answers`, and count meanwhile."""
    with watching.counting(llm) as counts:
        found = answers(llm, prompts, params)
    return {"answers": found, **counts}


def recorded(llm: Any, requests: Records, aborts: dict[str, list[Any]]) -> dict[str, Any]:
    """Do as `served.Served.recorded` says; see `watching.recording`."""
    engine = llm.llm_engine
    waiting = list(requests)
    outputs = {}
    seen = dict[str, float]()

    def is_there(after: list[Any]) -> bool:
        name, count = after
        return seen.get(name, 0) >= count

    with watching.recording(llm) as records, watching.counting(llm) as counts:
        while waiting or engine.has_unfinished_requests():
            for request in [one for one in waiting if "after" not in one or is_there(one["after"])]:
                waiting.remove(request)
                prompt = {"prompt_token_ids": request["prompt"]}
                prompt |= {"cache_salt": request["salt"]} if request.get("salt") else {}
                engine.add_request(request["id"], prompt, inside.sampling(request["params"]))
            for name in [name for name, after in aborts.items() if is_there(after)]:
                del aborts[name]
                engine.abort_request([name])
                outputs.setdefault(name, {"token_ids": [], "text": "", "stop_reason": None})["finish_reason"] = "abort"
                seen[name] = float("inf")
            for output in engine.step():
                outputs[output.request_id] = inside.described(output.outputs[0])
                seen[output.request_id] = float("inf") if output.finished else len(output.outputs[0].token_ids)
    finals = {one["id"]: [*one["prompt"], *outputs[one["id"]]["token_ids"]] for one in requests}
    wrong = wrong_texts(records, finals)
    return {"outputs": outputs, "records": records, "wrong": wrong, "left": _left(llm), "counts": counts}


def _left(llm: Any) -> dict[str, int]:
    """Return what is held of ended requests; the newest one is forgotten by the step behind it."""
    drafting = watching.drafting(llm)
    assert len(drafting.slots.occupants) == len(drafting.allocator)
    return {"places": max(0, len(drafting.allocator) - 1), "waiting": len(drafting.allocator._waiting)}
