"""SGLang's arms: an `Engine` each; on a CPU its kernels are the tests' stand-ins, so that only counts mean anything."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.real_models.arms import BASELINE, Arm

PACKAGES = ("sglang", "torch", "specplug")

GAMMAS = (3, 5, 8, 11, 15)
"""Draft tokens of SGLang's n-gram; 11 is its default, as it counts the root, too."""

BREADTH = 10  # of its trees, the default


def arms(model: str, context: int, concurrency: int) -> list[Arm]:
    """Return the arms."""
    from tests.engines.sglang.launch import configuration

    same = _same(model, context, concurrency)

    def own(gamma: int) -> Arm:
        launch = configuration("NGRAM", draft_length=gamma, topk=BREADTH, sampling=True, **same)
        return Arm(f"SGLang n-gram, {gamma} drafts", "built-in", launch)

    return [
        Arm(BASELINE, "baseline", configuration(sampling=True, **same)),
        *map(own, GAMMAS),
        specplug("specplug", same, policy="batch"),
        specplug("specplug, fixed", same, policy="fixed"),
        specplug("specplug trees, fixed", same, topk=8, policy="fixed"),
    ]


def by_policy(model: str, context: int, concurrency: int, policies: Any, lengths: Any, topk: int = 1) -> list[Arm]:
    """Return an arm for each policy, and one with the policy `fixed` for each length; trees if `topk` is not 1."""
    same = _same(model, context, concurrency)
    planned = [specplug(f"policy {policy}", same, topk=topk, policy=policy) for policy in policies]
    return planned + [specplug(f"fixed, K = {length}", same, length, topk, policy="fixed") for length in lengths]


def _same(model: str, context: int, concurrency: int) -> dict[str, Any]:
    """Return the arguments of every arm's engine."""
    return {
        "model_path": model,
        "context_length": context,
        "max_running_requests": max(concurrency, 8),
        "max_total_tokens": max(concurrency, 8) * 1024,
        "disable_radix_cache": True,
    }


def specplug(name: str, same: dict[str, Any], draft_length: int = 15, topk: int = 1, **settings: Any) -> Arm:
    """Return an arm with specplug's `ngram`."""
    import json

    from tests.engines.sglang.launch import configuration

    # Stand-ins are slow enough for a proposer to miss its deadline.
    stated = json.dumps({"proposer": "ngram", "costs": {}, "faults": {"host_deadline_ms": None}, **settings})
    environment = {"SPECPLUG_CONFIG": stated}
    launch = {"draft_length": draft_length, "topk": topk, "sampling": True, "environment": environment, **same}
    return Arm(name, "specplug", configuration("SPECPLUG", **launch))


def answer(engine: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer prompts together; runs in an arm's process.  Returns the fields of `Answer`.

    SGLang's own drafts are counted as SGLang counts them: every step as wide as the widest.
    """
    from tests.engines.sglang.inside import in_scheduler

    given = [
        {"temperature": each["temperature"], "max_new_tokens": each["max_tokens"], "sampling_seed": each.get("seed")}
        for each in params
    ]
    before = in_scheduler(engine, f"{__name__}:counts", {})
    began = time.perf_counter()
    outputs = engine.generate(input_ids=prompts, sampling_params=given)
    seconds = time.perf_counter() - began
    after = in_scheduler(engine, f"{__name__}:counts", {})
    grown = {name: after[name] - before[name] for name in after}
    metas = [output["meta_info"] for output in outputs]
    plain = [meta["completion_tokens"] for meta in metas if "spec_verify_ct" not in meta]
    of_sglang = {
        "drafted": sum(meta.get("spec_num_proposed_drafts", 0) for meta in metas),
        "accepted": sum(meta.get("spec_num_correct_drafts", 0) for meta in metas),
    }
    return {
        "token_ids": [list(output["output_ids"]) for output in outputs],
        "seconds": seconds,
        "steps": sum(plain) + sum(1 + meta["spec_verify_ct"] for meta in metas if "spec_verify_ct" in meta),
        **of_sglang,
        **grown,
    }


def counts(scheduler: Any) -> dict[str, float]:
    """Return the CPU seconds of the scheduler's process, in which this is called, and specplug's counts if it runs."""
    drafting = getattr(scheduler.draft_worker, "drafting", None)
    found: dict[str, float] = {"cpu": time.process_time()}
    if drafting is not None:
        total = drafting.stage.metrics.snapshot().total
        found |= {"drafted": total.proposed, "accepted": total.accepted}
    return found
