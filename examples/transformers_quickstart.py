"""The embedded engine in one page: load a model, serve two requests, look at what speculation did.

    python examples/transformers_quickstart.py [MODEL]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from specplug.demo import model_path
from specplug_transformers import Engine, GenerateRequest, SamplingParams

name = sys.argv[1] if len(sys.argv) > 1 else str(model_path("tiny"))
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
engine = Engine(model, tokenizer, settings={"proposer": "ngram", "num_speculative_tokens": 8})

code = "def area(width, height):\n    return width * height"
rename = f"<|edit|>Rename `width` to `breadth`: use breadth instead of width.<|document|>{code}<|answer|>"
answers = engine.generate(
    [
        GenerateRequest(prompt=rename, params=SamplingParams(max_tokens=60)),
        # A reference is text that the answer may copy from, without being part of the prompt.
        GenerateRequest(
            prompt="<|code|>def area(width, height):\n",
            params=SamplingParams(max_tokens=20),
            specplug={"references": [code], "num_speculative_tokens": 4},
        ),
    ]
)
for answer in answers:
    print(answer.text)
    print(f"--- {len(answer.token_ids)} tokens in {answer.steps} steps\n")
print(f"tokens per step, all requests: {engine.metrics.snapshot().total.tau:.2f}")
engine.close()
