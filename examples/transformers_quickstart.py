"""Quick start of the embedded engine: load a model, serve two requests, print speculation statistics.

python examples/transformers_quickstart.py [MODEL]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from specplug.tools.demo import model_path
from specplug_transformers import Engine, GenerateRequest, SamplingParams

name = sys.argv[1] if len(sys.argv) > 1 else str(model_path("tiny"))
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
engine = Engine(model, tokenizer, settings={"proposer": "ngram", "num_speculative_tokens": 15})

code = """def read(path, mode):
    with open(path, mode) as file:
        text = file.read()
    return text.splitlines()"""
change = """def read(path, mode):
    with open(path, flags) as file:
        text = file.read()"""
edit = f"<|document|>{code}<|edit|>{change}<|answer|>"
passage = "Return the whole text of a file, decoded as UTF-8."
documents = f"<|document|>read: {passage}<|document|>write: Put a text into a file."
quote = f"{documents}<|quote|>Return the whole<|answer|>"
answers = engine.generate(
    [
        GenerateRequest(prompt=edit, params=SamplingParams(max_tokens=80)),
        # Per-request fields: a cap on the draft length, and a reference, which is text that the answer may copy from
        # although it is not part of the prompt.
        GenerateRequest(
            prompt=quote,
            params=SamplingParams(max_tokens=30),
            specplug={"num_speculative_tokens": 4, "references": ["Return the whole text of a file."]},
        ),
    ]
)
for answer in answers:
    print(answer.text)
    print(f"--- {len(answer.token_ids)} tokens in {answer.steps} steps\n")
print(f"tokens per step, all requests: {engine.metrics.snapshot().total.tau:.2f}")
engine.close()
