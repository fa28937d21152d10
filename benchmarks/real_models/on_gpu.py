"""vLLM's arms on a GPU: an `LLM` each, as a server would launch it, on vLLM's default runner, in its own process.

All arms start at once, since loading and compiling takes a minute or more, and share the GPU; each has room for the
model and `KV_CACHE_BYTES`.  They still take turns, one working at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.real_models.arms import BASELINE, Arm
from benchmarks.real_models.on_vllm import LAUNCH, NGRAM
from specplug.errors import EngineError

ROOT = Path(__file__).parents[2]
SOURCES = [str(ROOT / folder) for folder in (".", "proposers", "policies", "adapters")]
PACKAGES = ("vllm", "torch", "specplug")
GAMMAS = (3, 5, 8)
KV_CACHE_BYTES = 2 << 30


def arms(model: str, context: int, concurrency: int, given: dict[str, Any]) -> list[Arm]:
    """Return no speculation, vLLM's n-gram on the GPU at several draft lengths, and specplug as README.md launches it.

    Args:
        given: further arguments of every `LLM`, such as "dtype" or "attention_config".
    """
    same: dict[str, Any] = {
        "model": model,
        "max_model_len": context,
        "max_num_seqs": max(concurrency, 8),
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        **given,
    }
    own = {"method": "ngram_gpu", "prompt_lookup_min": NGRAM["prompt_lookup_min"], "prompt_lookup_max": 4}
    found = [Arm(BASELINE, "baseline", same)]
    for gamma in GAMMAS:
        spec = {**own, "num_speculative_tokens": gamma}
        found.append(Arm(f"vLLM n-gram, K = {gamma}", "built-in", {**same, "speculative_config": spec}))
    settings = {"speculative_config": LAUNCH, "additional_config": {"specplug": {"proposer": "ngram"}}}
    return [*found, Arm("specplug", "specplug", {**same, **settings})]


class Process:
    """An arm, which starts when it is made and anew after `stop`; its log is a file.

    Args:
        launch: the arguments of `LLM`.
        log: where the process writes what vLLM prints.
    """

    def __init__(self, launch: dict[str, Any], log: Path) -> None:
        self._launch, self._log, self._used = launch, log, False
        self._start()

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return ``function(llm, **arguments)``, run in the process; arguments and result are JSON values.

        Raises:
            EngineError: the process has ended; the message has the end of its log.
        """
        if self._process is None:
            self._start()
        self._used, process = True, self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps([function.__module__, function.__name__, arguments]), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError.build("vLLM's process has ended", found=self._log.read_text()[-1500:])
        return json.loads(line)

    def stop(self) -> None:
        """End the process, unless it is as new."""
        if self._used:
            self.close()

    def close(self) -> None:
        """End the process, and vLLM's engine, which is its child."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process, self._used = None, False

    def _start(self) -> None:
        paths = os.pathsep.join(filter(None, [*SOURCES, os.environ.get("PYTHONPATH")]))
        plugins = {} if "additional_config" in self._launch else {"VLLM_PLUGINS": ""}
        with self._log.open("w") as log:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(self._launch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": paths, **plugins},
            )


def _serve(launch: dict[str, Any]) -> None:
    """Answer calls from standard input, one a line, until it ends."""
    import importlib

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints goes to the log
    from vllm import LLM

    llm = LLM(**launch)
    for line in sys.stdin:
        module, name, arguments = json.loads(line)
        print(json.dumps(getattr(importlib.import_module(module), name)(llm, **arguments)), file=answers, flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
