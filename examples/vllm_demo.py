"""Demo of a real vLLM server with specplug against the same server without: `make demo-vllm`.

    .venv-vllm/bin/python examples/vllm_demo.py [--tasks 6] [--proposer ngram] [--draft-length 15] [--json]

What happens:

1. Two servers are started by `vllm serve` on the model that specplug ships, each on a free port:

       vllm serve MODEL                                                      (no speculation)
       vllm serve MODEL --speculative-config '{"method": "custom_class", "model": "specplug_vllm.Proposer", ...}'

2. The `openai` client sends both the same requests, one at a time, every other one as a stream: to apply an edit to
   code, to quote from documents, to fill in JSON.
3. Each request is sent to the specplug server once more with a reference text, in `extra_body={"vllm_xargs":
   {"specplug_prediction": TEXT}}`: its first answer, as a client that repeats a request would send.  The prompt does
   not hold that text.  This is the best case of a predicted output; a wrong one costs drafts, never text.
4. The texts are compared, and the tokens per step and the acceptance rate are read from `/specplug/status`.

Exit code 1 if any text differs.  Takes about two minutes on two CPU cores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from demo_servers import Launch
from serving_demo import Demo

from specplug.tools.demo import model_path

FLAGS = (
    "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 4 --no-enable-prefix-caching "
    "--kv-cache-memory-bytes 268435456"  # instead of a share of the machine's memory, for each of two servers
)

ENVIRONMENT = {  # small, offline, one CPU thread
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def launches(settings: dict[str, Any], draft_length: int) -> tuple[Launch, Launch]:
    """Return the servers' launches; specplug's settings are an argument of vLLM."""
    vllm = Path(sys.executable).with_name("vllm")
    command = [str(vllm), "serve", str(model_path("tiny")), *FLAGS.split()]
    requested = {"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": draft_length}
    flags = ["--speculative-config", json.dumps(requested), "--additional-config", json.dumps({"specplug": settings})]
    return Launch(command, ENVIRONMENT), Launch([*command, *flags], ENVIRONMENT)


def with_prediction(text: str) -> dict[str, Any]:
    """Return the `extra_body` of a request with a predicted output."""
    return {"vllm_xargs": {"specplug_prediction": text}}


if __name__ == "__main__":
    Demo(__doc__ or "", launches, with_prediction).run()
