"""Example of vLLM's offline `LLM` with specplug: two requests, one of them with per-request fields.

.venv-vllm/bin/python examples/vllm_offline.py [MODEL]
"""

import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, where vLLM runs on a CPU

from vllm import LLM, SamplingParams

from specplug.tools.demo import model_path


def main(model: str) -> None:
    """Serve both requests and print speculation statistics."""
    llm = LLM(
        model,
        max_num_seqs=8,
        max_model_len=1024,
        enforce_eager=True,
        speculative_config={"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": 15},
        additional_config={"specplug": {"proposer": "ngram", "policy": "batch"}},
    )
    code = "def read(path, mode):\n    with open(path, mode) as file:\n        text = file.read()\n    return text"
    change = "def read(path, mode):\n    with open(path, flags) as file:\n        text = file.read()"
    record = '<|document|>name: "read"\nmodule: "files"\nkind: "function"\nline: 12'
    form = '<|json|>{"name": "read", "kind": null, "line": null, "module": null}<|answer|>'
    earlier = '{\n  "name": "read",\n  "kind": "function",\n  "line": 7,\n  "module": "files"\n}'
    prompts = [f"<|document|>{code}<|edit|>{change}<|answer|>", record + form]
    params = [
        SamplingParams(temperature=0, max_tokens=80),
        # What the answer was before the function moved: text that it may copy from, and that the prompt does not hold.
        SamplingParams(
            temperature=0,
            max_tokens=80,
            extra_args={"specplug": {"references": [earlier], "num_speculative_tokens": 6}},
        ),
    ]
    for answer in llm.generate(prompts, params):
        print(answer.outputs[0].text, end="\n---\n")
    (status,) = llm.collective_rpc("specplug_status")
    total = status["metrics"]["total"]
    print(f"{total['emitted']} tokens in {total['target_steps']} steps, drafts from {status['sources']}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(model_path("tiny")))
