"""Functions that run inside an engine's process, called as ``engine.call("inside.generate", ...)``.

Each takes the `LLM` first and returns JSON values.  The ones that look into scheduler and runner need an engine in one
process (``in_process=True``, the default).
"""

from __future__ import annotations

from typing import Any


def generate(
    llm: Any,
    prompts: list[str | list[int]],
    params: dict[str, Any] | list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Generate for all prompts at once; greedy, and 48 tokens, when `params` say nothing else.

    Returns:
        Per prompt "token_ids", "text", "finish_reason", "stop_reason" and, when asked for, "logprobs": per token
        {token id: logprob}.
    """
    given = params if isinstance(params, list) else [params or {}] * len(prompts)
    outputs = llm.generate([prompt_of(p) for p in prompts], [sampling(p) for p in given], use_tqdm=False)
    return [described(output.outputs[0]) for output in outputs]


def prompt_of(prompt: str | list[int]) -> Any:
    """Return a prompt as vLLM takes it."""
    return {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt


def sampling(given: dict[str, Any]) -> Any:
    """Return `SamplingParams`, with specplug's fields under "specplug"; greedy and 48 tokens unless said otherwise."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    merged = {"temperature": 0.0, "max_tokens": 48, **given}
    merged.pop("reasoning", None)  # SGLang asks for it
    if (fields := merged.pop("specplug", None)) is not None:
        merged["extra_args"] = {"specplug": fields}
    if isinstance(merged.get("structured_outputs"), dict):
        merged["structured_outputs"] = StructuredOutputsParams(**merged["structured_outputs"])
    if merged.get("logit_bias"):
        merged["logit_bias"] = {int(token): bias for token, bias in merged["logit_bias"].items()}
    return SamplingParams(**merged)


def described(completion: Any) -> dict[str, Any]:
    """Return what one completion holds."""
    found = {
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        found["logprobs"] = [
            {str(token): entry.logprob for token, entry in (step or {}).items()} for step in completion.logprobs
        ]
    return found


def core(llm: Any) -> Any:
    """Return the engine core of an engine in one process."""
    return llm.llm_engine.engine_core.engine_core


def scheduler(llm: Any) -> Any:
    """Return the scheduler of an engine in one process."""
    return core(llm).scheduler


def runner(llm: Any) -> Any:
    """Return the model runner of an engine in one process."""
    worker = core(llm).model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


def facts(llm: Any) -> dict[str, Any]:
    """Return what vLLM has decided to run, by name."""
    config = llm.llm_engine.vllm_config
    found = {
        "v2": bool(config.use_v2_model_runner),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "num_speculative_tokens": config.num_speculative_tokens,
        "scheduler_cls": named(config.scheduler_config.get_scheduler_cls()),
    }
    if hasattr(llm.llm_engine.engine_core, "engine_core"):
        speculator = getattr(runner(llm), "speculator", None) or getattr(runner(llm), "drafter", None)
        found["scheduler"] = named(type(scheduler(llm)))
        found["runner"] = named(type(runner(llm)))
        found["speculator"] = None if speculator is None else named(type(speculator))
    return found


def named(cls: type) -> str:
    """Return where a class comes from."""
    return f"{cls.__module__}.{cls.__qualname__}"


def metrics(llm: Any) -> dict[str, float]:
    """Return vLLM's counters and gauges by name, summed over labels."""
    found: dict[str, float] = {}
    for metric in llm.get_metrics():
        if hasattr(metric, "value"):
            found[metric.name] = found.get(metric.name, 0.0) + metric.value
    return found


def drive(
    llm: Any, requests: list[dict[str, Any]], aborts: dict[str, list[Any]] | None = None, max_steps: int = 4000
) -> dict[str, Any]:
    """Run the engine step by step; return by request id what `generate` does, or as much as there was of it.

    Args:
        requests: each with "id", "prompt", and maybe "params", as `generate` has them; "at", the step before which it
            arrives; "after": [id, count], another request and how many tokens of it must be there first; and "salt", of
            the prefix cache.
        aborts: by request id when it leaves, as "after".
    """
    engine = llm.llm_engine
    waiting = [{"at": 0, "after": None, "params": {}, "salt": None, **request} for request in requests]
    leaving = dict(aborts or {})
    outputs: dict[str, Any] = {}
    counts = dict[str, float]()

    def is_there(after: list[Any] | None) -> bool:
        return after is None or counts.get(after[0], 0) >= after[1]

    for step in range(max_steps):
        for request in [one for one in waiting if one["at"] <= step and is_there(one["after"])]:
            waiting.remove(request)
            prompt = prompt_of(request["prompt"]) | ({"cache_salt": request["salt"]} if request["salt"] else {})
            engine.add_request(request["id"], prompt, sampling(request["params"]))
        for name in [name for name, after in leaving.items() if is_there(after)]:
            del leaving[name]
            engine.abort_request([name])
            outputs.setdefault(name, {"token_ids": [], "text": "", "stop_reason": None})["finish_reason"] = "abort"
            counts[name] = float("inf")
        if not waiting and not engine.has_unfinished_requests():
            return outputs
        for output in engine.step():
            outputs[output.request_id] = described(output.outputs[0])
            counts[output.request_id] = float("inf") if output.finished else len(output.outputs[0].token_ids)
    raise RuntimeError(f"requests did not finish in {max_steps} steps")
