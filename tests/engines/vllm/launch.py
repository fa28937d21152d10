"""Launch configuration of vLLM in the tests: arguments and environment, for `LLM(...)` and for `vllm serve` alike."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.engines import launch
from tests.engines.launch import ENGINES, MODEL, PLUGINS, PYTHON, ROOT, TINY, TORCHVISION

__all__ = ["ROOT", "RUNNERS", "SERVED", "TINY", "ZOO", "Configuration", "Runner", "configuration"]

TRITON_CPU = ENGINES / "triton_cpu"
RECURRENT_CPU = ENGINES / "recurrent_cpu"
VLLM_NAME = ROOT / ".ci" / "environments" / "vllm-name"

# The general plug-ins of vLLM that may be named in VLLM_PLUGINS: ours, and what V2 and recurrent models need on a CPU.
SPECPLUG = "specplug"
ON_CPU = "specplug_test_triton_cpu"
RECURRENT = "specplug_test_recurrent"

Runner = Literal["v1", "v2"]

SMALL: dict[str, Any] = {
    "model": str(TINY),
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 256 << 20,
    "seed": 0,
}

RUNNERS: dict[str, dict[str, Any]] = {
    "v1": {"runner": "v1"},
    "v2": {"runner": "v2"},
    "v2_async": {"runner": "v2", "asynchronous": True},
}

ZOO = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "bigram", "recorder", "example", "spliced"],
    "policy": "fixed",
}
"""Settings of the engines whose requests name their proposers: host and device, with and without knowledge."""

SERVED = {"served_model_name": MODEL}
"""What servers are launched with beside."""


class Configuration(launch.Configuration):
    """One way to launch vLLM."""

    host = "tests.engines.vllm.host"
    always: ClassVar[Mapping[str, str]] = {
        **launch.ALWAYS,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        # Eager engines, too, compile vLLM's own parts of logprobs and of adaptive verification, for up to a minute.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(ROOT / ".cache" / "vllm"),
    }
    late = (
        *launch.Configuration.late,
        "VLLM_ALLOW_INSECURE_SERIALIZATION",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_PLUGINS",
        "SPECPLUG_TEST_ASYNC",
    )

    own_folders = (RECURRENT_CPU,)

    @property
    def has_children(self) -> bool:
        return self.variables()["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0"

    def command(self, port: int) -> list[str]:
        vllm = str(Path(PYTHON).with_name("vllm"))
        return [vllm, "serve", *self.flags(), "--host", "127.0.0.1", "--port", str(port)]

    def flags(self) -> list[str]:
        """Return the arguments as `vllm serve` takes them, the model first."""
        flags = [str(self.arguments["model"])]
        for name, value in self.arguments.items():
            flag = "--" + name.replace("_", "-")
            if name == "model":
                continue
            if isinstance(value, bool):
                flags.append(flag if value else flag.replace("--", "--no-", 1))
            elif value is not None:
                flags += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
        return flags


def configuration(
    runner: Runner = "v1",
    specplug: Mapping[str, Any] | None = None,
    *,
    draft_length: int = 8,
    asynchronous: bool = False,
    in_process: bool = True,
    installed: bool = True,
    endpoints: bool = False,
    recurrent: bool = False,
    environment: Mapping[str, str | None] | None = None,
    **arguments: Any,
) -> Configuration:
    """Describe an engine on the tiny model; `arguments` are of `LLM(...)`.

    `specplug` holds its settings; None launches without asking for it, and with `installed` off its plug-ins are
    hidden.  V2 runs in Triton's interpreter, `asynchronous` although vLLM turns that off on CPUs.  `in_process` keeps
    scheduler and worker where tests can look into them.  Servers load specplug's `endpoints`; `recurrent` kernels that
    roll back take the place of vLLM's.  Models that read pictures find torchvision's names.
    """
    folders = [PLUGINS, VLLM_NAME, TORCHVISION]
    variables: dict[str, str | None] = {"TRITON_INTERPRET": None, "VLLM_PLUGINS": None}
    if runner == "v2":
        folders.append(TRITON_CPU)
        variables["TRITON_INTERPRET"] = "1"
    if recurrent:
        folders.append(RECURRENT_CPU)
    variables["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_process else "1"
    variables["SPECPLUG_TEST_ASYNC"] = "1" if asynchronous else None
    cpu = [ON_CPU] * (runner == "v2") + [RECURRENT] * recurrent
    if not installed:
        variables["VLLM_PLUGINS"] = ",".join(cpu)
    elif endpoints:
        variables["VLLM_PLUGINS"] = ",".join([SPECPLUG, "specplug_http", *cpu])
    if specplug is not None:
        requested = {
            "method": "custom_class",
            "model": "specplug_vllm.Proposer",
            "num_speculative_tokens": draft_length,
        }
        arguments.setdefault("speculative_config", requested)
        # Tests count steps, and what a policy learns of them; `test_timed_steps` times some before the first request.
        settings = {"costs": {"measure": False}, **specplug}
        arguments.setdefault("additional_config", {"specplug": settings})
    return Configuration({**SMALL, **arguments}, {**variables, **(environment or {})})
