"""Launch configuration of SGLang in tests: arguments and environment, for `Engine(...)` and for its server alike."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.engines import launch
from tests.engines.launch import ENGINES, MODEL, PLUGINS, PYTHON, ROOT, TINY, TORCHVISION

SGLANG_CPU = ENGINES / "sglang_cpu"

SMALL: dict[str, Any] = {
    "model_path": str(TINY),
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "context_length": 1024,
    "max_running_requests": 8,
    "max_total_tokens": 8192,
    "mem_fraction_static": 0.99,  # else SGLang leaves gigabytes unused, or ends where there are none to be left
    "random_seed": 0,
    "sleep_on_idle": True,  # else an engine that waits for its next test takes a core
    "log_level": "info",
}

SERVED = {"served_model_name": MODEL}
"""What servers are launched with beside."""

FEATURES: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "enable_return_hidden_states": True,
    "chunked_prefill_size": 64,
    "max_running_requests": 24,
}
"""What engines are launched with beside whose features are tested."""


class Configuration(launch.Configuration):
    """One way to launch SGLang."""

    host = "tests.engines.sglang.host"
    always: ClassVar[Mapping[str, str]] = {
        **launch.ALWAYS,
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_MAMBA_CONV_DTYPE": "float32",  # as the rest of the models of the tests
        "TORCH_COMPILE_DISABLE": "1",  # SGLang compiles the repetition penalty, which looks for the real triton
        "SGLANG_CACHE_DIR": str(ROOT / ".cache" / "sglang"),
        "SGLANG_JIT_CACHE_DIR": str(ROOT / ".cache" / "sglang" / "jit"),
        "PATH": os.pathsep.join([str(Path(PYTHON).parent), os.environ.get("PATH", "")]),  # where ninja is
        "PYTHONPATH": os.pathsep.join(map(str, [PLUGINS, SGLANG_CPU, TORCHVISION])),
    }
    late = (
        *launch.Configuration.late,
        "SGLANG_CPU_OMP_THREADS_BIND",
        "SPECPLUG_TEST_OVERLAP",
        "SPECPLUG_TEST_SAMPLING",
    )

    @property
    def has_children(self) -> bool:
        return True

    def command(self, port: int) -> list[str]:
        return [PYTHON, "-m", "sglang.launch_server", *self.flags(), "--host", "127.0.0.1", "--port", str(port)]

    def flags(self) -> list[str]:
        """Return the arguments as the server takes them."""
        flags = []
        for name, value in self.arguments.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                flags.append(flag)
            elif value is not False and value is not None:
                flags += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
        return flags


def configuration(
    algorithm: str | None = None,
    *,
    draft_length: int = 8,
    topk: int = 1,
    overlap: bool = True,
    sampling: bool = False,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str | None] | None = None,
    **arguments: Any,
) -> Configuration:
    """Describe an engine on the tiny model.

    Args:
        algorithm: of speculation; None is none.
        draft_length: drafts per request and step, the root not counted.
        topk: 1 for chains, more for trees (of SGLang's own n-gram, its widest branching).
        overlap: overlap scheduling, which SGLang's own algorithms get on a GPU only, unless asked for here.
        sampling: verification samples at temperature > 0, as on a GPU.
        settings: specplug's.
        environment: more variables.
        arguments: more arguments of `Engine(...)`, or others than the defaults.
    """
    speculation = {
        "speculative_algorithm": algorithm,
        "speculative_num_draft_tokens": draft_length + 1,
        "speculative_ngram_max_bfs_breadth" if algorithm == "NGRAM" else "speculative_eagle_topk": topk,
    }
    variables: dict[str, str | None] = {
        "SPECPLUG_TEST_OVERLAP": "1" if overlap else None,
        "SPECPLUG_TEST_SAMPLING": "1" if sampling else None,
        **({} if settings is None else {"SPECPLUG_CONFIG": json.dumps(settings)}),
        **(environment or {}),
    }
    if (stated := variables.get("SPECPLUG_CONFIG") or "").startswith("{"):
        # Tests count steps, and what a policy learns of them; `test_timed_steps` times some before the first request.
        variables["SPECPLUG_CONFIG"] = json.dumps({"costs": {"measure": False}, **json.loads(stated)})
    requested = {**SMALL, **(speculation if algorithm else {}), "disable_overlap_schedule": not overlap, **arguments}
    return Configuration(requested, variables)
