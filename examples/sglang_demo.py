"""Demo of a real SGLang server with specplug against the same server without: `make demo-sglang`.

    .venv-sglang/bin/python examples/sglang_demo.py [--tasks 6] [--proposer ngram] [--draft-length 15] [--json]

What happens:

1. Two servers are started on the model that specplug ships, each on a free port:

       python -m sglang.launch_server --model-path MODEL                                            (no speculation)
       SPECPLUG_CONFIG='{"proposer": "ngram", ...}' python -m sglang.launch_server --model-path MODEL \\
           --speculative-algorithm SPECPLUG --speculative-num-draft-tokens 16

2. The `openai` client sends both the same requests, one at a time, every other one as a stream: to apply an edit to
   code, to quote from documents, to fill in JSON.
3. Each request is sent to the specplug server once more with a reference text, in `extra_body={"custom_params":
   {"specplug_prediction": TEXT}}`: its first answer, as a client that repeats a request would send.  The prompt does
   not hold that text.  This is the best case of a predicted output; a wrong one costs drafts, never text.
4. The texts are compared, and the tokens per step and the acceptance rate are read from `/specplug/status`.  With
   overlap scheduling each request runs one step past its end, which is counted, too.

Exit code 1 if any text differs.  Without a GPU, SGLang runs by the stand-ins for its kernels that the tests use; the
demo says so.  Takes about two minutes on two CPU cores.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sglang_stand_ins
from demo_servers import Launch
from serving_demo import Demo

from specplug.tools.demo import model_path

COMMON = {
    "model_path": str(model_path("tiny")),
    "dtype": "float32",
    "attention_backend": "triton",  # which takes float32
    "context_length": 1024,
    "max_running_requests": 4,
    "disable_radix_cache": True,  # the same prompt comes again
    "sleep_on_idle": True,  # else the server that is not asked takes a core
}


def launches(settings: dict[str, Any], draft_length: int) -> tuple[Launch, Launch]:
    """Return the servers' launches; specplug's settings are in their environment."""
    common = {**COMMON, **sglang_stand_ins.arguments()}
    command = [sys.executable, "-m", "sglang.launch_server", *flags(common)]
    speculation = flags({"speculative_algorithm": "SPECPLUG", "speculative_num_draft_tokens": draft_length + 1})
    environment = sglang_stand_ins.environment()
    configured = {**environment, "SPECPLUG_CONFIG": json.dumps(settings)}
    return Launch(command, environment), Launch([*command, *speculation], configured)


def flags(arguments: dict[str, Any]) -> list[str]:
    """Return arguments of an `Engine` as the server takes them."""
    words = []
    for name, value in arguments.items():
        words += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return words


def with_prediction(text: str) -> dict[str, Any]:
    """Return the `extra_body` of a request with a predicted output."""
    return {"custom_params": {"specplug_prediction": text}}


if __name__ == "__main__":
    remarks = (sglang_stand_ins.REMARK,) if sglang_stand_ins.needed() else ()
    Demo(__doc__ or "", launches, with_prediction, remarks).run()
