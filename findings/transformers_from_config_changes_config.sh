#!/usr/bin/env bash
# transformers: AutoModelForCausalLM.from_config(config, dtype=...) writes the dtype into the configuration that it is given.
# One would expect: the argument applies to the model that is made, and the caller's configuration stays as it was.
# What happens: config.dtype is the argument's afterwards, so whoever reads it later, to make a second model or to count
# the bytes of weights, gets the dtype of the first call.  from_pretrained leaves a configuration that it is given alone.
# Seen with transformers 5.24.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "transformers==5.24.0" "torch==2.13.0"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" - "$work" <<'PYTHON'
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

print(f"transformers {transformers.__version__}")
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
config = LlamaConfig(**sizes, dtype="float32")
before = config.dtype
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
print(f"  from_config: the configuration said {before}, and says {config.dtype} after a model of {model.dtype} was made")
assert (before, config.dtype) == (torch.float32, torch.bfloat16), "the behaviour has changed"

model.float().save_pretrained(sys.argv[1])
config = LlamaConfig(**sizes, dtype="float32")
loaded = AutoModelForCausalLM.from_pretrained(sys.argv[1], config=config, dtype=torch.bfloat16)
print(f"  from_pretrained: it says {config.dtype} after a model of {loaded.dtype} was loaded")
assert config.dtype == torch.float32, "the behaviour has changed"
PYTHON
