"""A program that generates as TRL's trainers do with `vllm_mode="colocate"`, and prints what came as JSON."""

from __future__ import annotations

import json
import sys


def main(model: str, prompts: list[list[int]], max_tokens: int) -> None:
    """Print the completions of each prompt, and specplug's counts."""
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.generation.vllm_generation import VLLMGeneration

    generation = VLLMGeneration(
        AutoModelForCausalLM.from_pretrained(model),
        Accelerator(cpu=True),
        AutoTokenizer.from_pretrained(model),
        mode="colocate",
        max_model_length=1024,
        max_num_seqs=8,
        temperature=0.0,
        max_completion_length=max_tokens,
    )
    _, completions, logprobs, _ = generation.generate(prompts, None, num_generations=1)
    [status] = generation.llm.collective_rpc("specplug_status")
    found = {"completions": completions, "logprobs": len(logprobs), "total": status["metrics"]["total"]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
