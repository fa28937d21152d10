"""Comparison of specplug's n-gram proposer with SGLang's own n-gram and with no speculation, in one run.

    make setup-sglang
    .venv-sglang/bin/python -m benchmarks.sglang_peers [--tasks 8] [--rounds 5] [--json peers.json]

Every arm is an `Engine` on the shipped model with overlap scheduling, one CPU thread, the same number of draft tokens,
and without prefix cache.  On a CPU SGLang's kernels and its attention over drafts are the tests' stand-ins in plain
torch: steps are slow, those that verify several tokens most, so what carries over to a GPU is tau, not the ratio.  See
`benchmarks.peers` for how arms are compared.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers import BASELINE, arguments, report, run

OURS = {"policy": "fixed", "faults": {"host_deadline_ms": None}}


def answer(engine: Any, prompts: list[str], max_tokens: int) -> dict[str, Any]:
    """Answer prompts together, greedily; runs in an arm's process.

    "steps" counts rows that emitted, the prefill's among them: tokens / steps is tau, counted alike in every arm.
    """
    from tests.engines.sglang.inside import in_scheduler

    params = {"temperature": 0.0, "max_new_tokens": max_tokens}
    before = in_scheduler(engine, "benchmarks.sglang_peers:counts", {})
    began = time.perf_counter()
    outputs = engine.generate(prompt=prompts, sampling_params=params)
    seconds = time.perf_counter() - began
    after = in_scheduler(engine, "benchmarks.sglang_peers:counts", {})
    metas = [output["meta_info"] for output in outputs]
    plain = [meta["completion_tokens"] for meta in metas if "spec_verify_ct" not in meta]
    of_sglang = {
        "drafted": sum(meta.get("spec_num_proposed_drafts", 0) for meta in metas),
        "accepted": sum(meta.get("spec_num_correct_drafts", 0) for meta in metas),
    }
    return {
        "token_ids": [list(output["output_ids"]) for output in outputs],
        "texts": [output["text"] for output in outputs],
        "seconds": seconds,
        "steps": sum(plain) + sum(1 + meta["spec_verify_ct"] for meta in metas if "spec_verify_ct" in meta),
        **(of_sglang if after is None else {name: after[name] - before[name] for name in after}),
    }


def counts(scheduler: Any) -> dict[str, int] | None:
    """Return specplug's own counts if it runs; called in the scheduler's process."""
    drafting = getattr(scheduler.draft_worker, "drafting", None)
    if drafting is None:
        return None
    total = drafting.stage.metrics.snapshot().total
    return {"drafted": total.proposed, "accepted": total.accepted}


def arms(draft_length: int, batch: int) -> dict[str, Any]:
    """Return the configuration of every arm, by name."""
    import json

    from tests.engines.sglang.launch import configuration

    same: dict[str, Any] = {"draft_length": draft_length, "disable_radix_cache": True, "max_running_requests": batch}

    def ours(proposer: str) -> dict[str, str]:
        return {"SPECPLUG_CONFIG": json.dumps({**OURS, "proposer": proposer})}

    return {
        BASELINE: configuration(**same),
        "SGLang NGRAM, trees": configuration("NGRAM", topk=8, **same),
        "specplug ngram, chains": configuration("SPECPLUG", environment=ours("ngram"), **same),
        "specplug ngram-tree": configuration("SPECPLUG", topk=8, environment=ours("ngram-tree"), **same),
    }


def main() -> None:
    """Run the benchmark and print the results."""
    from tests.engines.sglang.engines import Engine

    options = arguments(__doc__).parse_args()
    found, rounds = run(options, arms(options.draft_length, options.batch), Engine, answer)
    report(options, found, rounds, "SGLang {} with stand-ins for its kernels", ("sglang", "torch", "specplug"))
    print("SGLang's own drafts are counted as SGLang counts them: every step as wide as the widest.")


if __name__ == "__main__":
    main()
