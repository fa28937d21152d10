"""What `tests.engines.suites.served` runs in SGLang's process, whose scheduler has one of its own."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.engines.sglang import inside, watching
from tests.engines.suites.served import Answer, Params, Records

NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
OPTIONS: dict[str, Any] = {"return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0}
"""What SGLang takes beside sampling parameters, and what requests get that do not ask for it."""


def translated(params: Params) -> Params:
    """Return parameters in SGLang's names, and under "options" what it takes beside."""
    own = {NAMES.get(name, name): value for name, value in params.items() if value is not None}
    own |= {"temperature": params.get("temperature", 0.0)}
    if own.get("stop_token_ids"):
        own.pop("ignore_eos", None)  # SGLang ignores both kinds of end or none
    if not own.get("top_k", 1):
        del own["top_k"]
    grammar = own.pop("structured_outputs", None) or {}
    own |= {"json_schema": json.dumps(grammar["json"])} if "json" in grammar else grammar
    fields, top, prompt = (own.pop(name, None) for name in ("specplug", "logprobs", "prompt_logprobs"))
    reasons = own.pop("reasoning", False)
    if fields:
        own["custom_params"] = {"specplug": fields}
    if top is not None or prompt is not None:
        start = {} if prompt is None else {"logprob_start_len": 0}
        own["options"] = {"return_logprob": True, "top_logprobs_num": max(top or 0, prompt or 0), **start}
    if reasons:
        own.setdefault("options", {})["require_reasoning"] = True
    return own


def counts(engine: Any) -> dict[str, Any]:
    watching.settled(engine)
    return watching.call(engine, watching.counts)


def answers(engine: Any, prompts: list[list[int]], params: list[Params], together: bool = False) -> list[Answer]:
    """Answer all prompts; several answers to one prompt follow each other."""
    names = None
    if together:
        inside.in_scheduler(engine, f"{watching.__name__}:hold_back", {"count": len(prompts)})
        assert inside.flush(engine)
        batch = uuid.uuid4().hex  # the ids of its requests end with their numbers
        names = [f"{batch}-{number}" for number in range(len(prompts))]
    own = [translated(one) for one in params]
    options = [{**OPTIONS, **one.pop("options", {})} for one in own]
    each: dict[str, Any] = {"require_reasoning": any(one.pop("require_reasoning", False) for one in options)}
    if any(one != OPTIONS for one in options):
        each |= {name: [one[name] for one in options] for name in OPTIONS}
    outputs = engine.generate(input_ids=prompts, sampling_params=own, rid=names, **each)
    return [{**inside.described(output), **_logprobs(output["meta_info"])} for output in outputs]


def _logprobs(meta: dict[str, Any]) -> dict[str, Any]:
    found = {"cached": meta.get("cached_tokens", 0)}
    for name, of in (("logprobs", "output"), ("prompt_logprobs", "input")):
        own, tops = meta.get(f"{of}_token_logprobs") or (), meta.get(f"{of}_top_logprobs") or ()
        tops = tops or [()] * len(own)
        steps = [
            {str(token): value for value, token, _ in (*(top or ()), one)} for one, top in zip(own, tops, strict=True)
        ]
        if steps or name == "prompt_logprobs":
            found[name] = [None if None in step.values() else step for step in steps]
    return found


def counted(engine: Any, prompts: list[list[int]], params: list[Params]) -> dict[str, Any]:
    """Do as `answers`, and count meanwhile."""
    watching.call(engine, watching.begin)
    found = answers(engine, prompts, params)
    watching.settled(engine)
    return {"answers": found, **watching.call(engine, watching.end)["counts"]}


def recorded(engine: Any, requests: Records, aborts: dict[str, list[Any]]) -> dict[str, Any]:
    """Do as `Served.recorded` says; see `watching.recorded`."""
    own = [{**request, "params": translated(request["params"])} for request in requests]
    return watching.recorded(engine, own, aborts=aborts)
