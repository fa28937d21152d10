"""Triton's own launcher for NVIDIA GPUs, over a driver that does nothing: launches are counted and timed without a GPU.

Kernels get tensors of the CPU, and none runs.  A process can `install` the driver once, before its first kernel.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "libcuda.so.1"


def install(folder: Path, capability: int = 90) -> Callable[[], int]:
    """Compile the driver in a folder, which must outlive the process, and let Triton use it.

    It is that of a GPU of a compute capability, times ten.

    Returns:
        A function that returns how many kernels have been launched.
    """
    library = folder / LIBRARY
    compile_it = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(SOURCE)]
    subprocess.run(compile_it, check=True)
    (folder / "libcuda.so").symlink_to(library)
    os.environ.update(TRITON_INTERPRET="0", TRITON_LIBCUDA_PATH=str(folder))
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    from triton.runtime import driver

    driver.set_active(_driver(divmod(capability, 10)))
    count = loaded.launch_count
    count.restype = ctypes.c_long
    return count  # type: ignore[no-any-return]


def by_kernels() -> None:
    """Let the lookup launch its kernels on tensors of the CPU, too."""
    from specplug.lookup import kernels, steps

    def form_for(device: torch.device) -> Any:
        return kernels

    steps.form_for = form_for


def _driver(capability: tuple[int, int]) -> Any:
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils

    class EmptyDriver(CudaDriver):  # type: ignore[misc]
        """Triton's driver without PyTorch's build for CUDA, which tells it of devices and streams."""

        def __init__(self) -> None:
            self.utils = CudaUtils()
            self.launcher_cls = CudaLauncher
            self.get_device_capability = lambda device: capability
            self.get_current_stream = lambda device: 0
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

    return EmptyDriver()
