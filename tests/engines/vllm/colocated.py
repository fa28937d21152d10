"""TRL's colocate mode on the tiny model: a program of its own, as TRL builds vLLM in the trainer's process.

It answers prompts, changes the model that it trains, synchronises the weights, and answers again.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import torch

from tests.engines.launch import TINY
from tests.engines.plain import MAX_TOKENS, model, prompts, tokenizer


def main() -> None:
    """Print per round the answers and what specplug counted, and the model's own answers after the change."""
    from accelerate import Accelerator
    from trl.generation import vllm_generation
    from vllm import LLM

    # TRL has no settings for these; float32 keeps near ties apart.
    own = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 256 << 20}
    vllm_generation.LLM = functools.partial(LLM, **own)
    trained, given = model(), [list(prompt) for prompt in prompts()[:6]]
    trained.name_or_path = str(TINY)
    generation = vllm_generation.VLLMGeneration(
        trained,
        Accelerator(cpu=True),
        tokenizer(),
        max_model_length=1024,
        max_num_seqs=8,
        temperature=0.0,
        max_completion_length=MAX_TOKENS,
    )
    before = answered(generation, given)
    again = answered(generation, given)
    change(trained)
    generation.sync_weights()
    after = answered(generation, given)
    print(json.dumps({"before": before, "again": again, "after": after, "truth": [own_answer(p) for p in given]}))


def answered(generation: Any, given: list[list[int]]) -> dict[str, Any]:
    """Answer with two samples of each prompt; return the texts, their logprobs and specplug's counts so far."""
    twice = [prompt for prompt in given for _ in range(2)]
    _, texts, logprobs, _ = generation.generate(twice, None, num_generations=2)
    statuses = generation.llm.collective_rpc("specplug_status") if enabled(generation.llm) else [{}]
    return {"texts": texts, "logprobs": logprobs, "metrics": statuses[0].get("metrics")}


def enabled(llm: Any) -> bool:
    return llm.llm_engine.vllm_config.speculative_config is not None


def change(trained: Any) -> None:
    """Change weights as a step of training does, by enough to change texts."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.parameters():
            noise = torch.randn(parameter.shape, generator=draws)
            parameter += 0.1 * parameter.std() * noise if parameter.numel() > 1 else 0


def own_answer(prompt: list[int]) -> list[int]:
    """Return the changed model's greedy answer."""
    with torch.inference_mode():
        text = model().generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=MAX_TOKENS)
    return text[0, len(prompt) :].tolist()


if __name__ == "__main__":
    sys.exit(main())
