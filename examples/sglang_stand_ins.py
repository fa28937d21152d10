"""Stand-ins in plain torch for SGLang's kernels on a machine without a GPU, from this repository's tests; slow.

    import sglang_stand_ins

    sglang_stand_ins.use()  # before SGLang is imported
    sglang.Engine(..., **sglang_stand_ins.arguments())

If they are not needed, the functions do nothing.  Servers get `environment()`, and `arguments()` as flags.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "engines" / "sglang_cpu"
FOLDERS = (FOLDER, FOLDER.with_name("torchvision_cpu"))

REMARK = (
    "No GPU, or no sgl_kernel beside SGLang: it runs on the CPU, by the stand-ins for its kernels that this "
    "repository's tests use (tests/engines/sglang_cpu)."
)


def needed() -> bool:
    """Return whether SGLang's own kernels cannot run here."""
    import torch

    found = importlib.util.find_spec("sgl_kernel")
    ours = found is not None and FOLDER in Path(found.origin or "").parents
    return not torch.cuda.is_available() or found is None or ours


def arguments() -> dict[str, Any]:
    """Return arguments of an `Engine`."""
    if not needed():
        return {}
    return {
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "max_total_tokens": 8192,
        "mem_fraction_static": 0.99,  # else SGLang leaves gigabytes unused, or ends where there are none to be left
    }


def environment() -> dict[str, str]:
    """Return variables for SGLang's processes."""
    if not needed():
        return {}
    paths = [*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",  # it would look for the real Triton
        "SGLANG_CACHE_DIR": str(ROOT / ".cache" / "sglang"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def use() -> None:
    """Make this process and those that it starts run SGLang with the stand-ins, if they are needed."""
    if needed():
        os.environ.update(environment())
        sys.path[:0] = map(str, FOLDERS)
