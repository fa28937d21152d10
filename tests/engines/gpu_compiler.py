"""Triton kernels compiled ahead of time for a GPU that this machine need not have, in a process of their own.

    python -m tests.engines.gpu_compiler <launches.json >compiled.json

The process is one without Triton's interpreter, which kernels of the tests' process may be defined for.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.engines.launch import PYTHON, ROOT

H100 = 90
"""Compute capability 9.0, times ten."""


HOLDS = {"ingest_kernel": "add.u32", "remember_kernel": "max.s32"}
LACKS = {"trim_kernel": "mul.ftz", "draft_kernel": "div", "tree_kernel": "div"}
"""By kernel what its assembly holds, and what would round otherwise than the reference does."""


def assert_assembly(kernel: str, ptx: str, capability: int) -> None:
    """Assert that a kernel was compiled for a GPU, and computes as the reference does."""
    assert f".target sm_{capability}" in ptx
    assert f".entry {kernel}(" in ptx
    assert HOLDS.get(kernel, "") in ptx
    assert kernel not in LACKS or LACKS[kernel] not in ptx


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        kernel: "module:function".
        types: Triton's type of each argument by name, such as "*i32" or "i64", without the constants.
        constants: values of the arguments that are `constexpr`.
        num_warps: of the launch.
    """

    kernel: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4


@dataclass(frozen=True)
class Compiled:
    """A kernel's assembly, and the size of its machine code in bytes."""

    ptx: str
    cubin_bytes: int


def compiled(launches: Sequence[Launch], cache: Path, capability: int = H100) -> list[Compiled]:
    """Compile the kernels of launches, for NVIDIA GPUs of a compute capability.

    Args:
        launches: each as Triton would compile it without any specialisation.
        cache: folder of Triton's compilation cache; an empty one lets every kernel be compiled.
        capability: times ten, such as 90.
    """
    task = {"capability": capability, "launches": [asdict(launch) for launch in launches]}
    done = subprocess.run(
        [PYTHON, "-m", "tests.engines.gpu_compiler"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return [Compiled(**found) for found in json.loads(done.stdout)]


def main() -> None:
    """Compile what standard input lists, and print the results."""
    task = json.load(sys.stdin)
    json.dump([_compile(capability=task["capability"], **launch) for launch in task["launches"]], sys.stdout)


def _compile(
    kernel: str, types: dict[str, str], constants: dict[str, Any], num_warps: int, capability: int
) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    all_types = types | dict.fromkeys(constants, "constexpr")
    assert all_types.keys() == set(function.arg_names), all_types.keys() ^ set(function.arg_names)
    source = ASTSource(function, {name: all_types[name] for name in function.arg_names}, constexprs=constants)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
    return {"ptx": found.asm["ptx"], "cubin_bytes": len(found.asm["cubin"])}


if __name__ == "__main__":
    main()
