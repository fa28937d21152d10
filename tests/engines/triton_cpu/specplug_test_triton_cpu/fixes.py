"""Additions to Triton's interpreter for vLLM's kernels, and async scheduling on a CPU, as a vLLM plug-in.

Effective in every process of an engine; see the entry points beside this package.
"""

from __future__ import annotations

import functools
import os
from typing import Any

ASYNC = "SPECPLUG_TEST_ASYNC"


def register() -> None:
    """Apply the fixes, once per process."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        fix_masks()
        fix_log1p()
        fix_top_k_top_p()
        patch_once()
        leave_out_checks()
    if os.environ.get(ASYNC) == "1":
        keep_async_scheduling()


def patch_once() -> None:
    """Let the language stay patched, which the interpreter otherwise patches at every call of every function.

    Everything is interpreted in this process.  Steps take two thirds of the time.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    kept = _Kept()
    patched = set()
    if hasattr(original, "_specplug_test"):
        return

    def patch_lang(fn: Any) -> _Kept:
        if id(fn.__globals__) not in patched:  # modules live as long as the process
            patched.add(id(fn.__globals__))
            original(fn)
        return kept

    patch_lang._specplug_test = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_lang


def leave_out_checks() -> None:
    """Check no integers for overflow, as on a GPU, and look up the dtype of each scalar type once."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    original = interpreter._get_np_dtype
    found = {}
    if hasattr(original, "_specplug_test"):
        return

    def get_np_dtype(given: Any) -> Any:
        name = given.scalar.name
        if name not in found:
            found[name] = original(given)
        return found[name]

    get_np_dtype._specplug_test = True  # type: ignore[attr-defined]
    interpreter._get_np_dtype = get_np_dtype
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None


class _Kept:
    """A patch that is not taken back."""

    def restore(self) -> None: ...


def fix_masks() -> None:
    """Make masks of loads and stores boolean.

    The interpreter computes some 1-bit values in wider integers, which its own loads and stores then refuse.
    """
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    def as_bool(mask: Any) -> Any:
        if mask is not None and mask.data.dtype != np.bool_:
            mask.data = (mask.data & 1).astype(np.bool_)  # a 1-bit integer is its lowest bit
        return mask

    load = InterpreterBuilder.create_masked_load
    store = InterpreterBuilder.create_masked_store
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def create_masked_load(self: Any, ptrs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self, ptrs, as_bool(mask), *args, **kwargs)

    @functools.wraps(store)
    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return store(self, ptrs, value, as_bool(mask), *args, **kwargs)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


def fix_log1p() -> None:
    """Compute log1p, which the interpreter has only as an empty stub."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def log1p(x: Any) -> Any:
        return tl.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    libdevice.log1p = log1p


def fix_top_k_top_p() -> None:
    """Let vLLM's own plain-torch version cut the logits: its kernel calls methods of what `tl.range` yields."""
    from vllm.v1.sample.ops import topk_topp_sampler as module

    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
        return module.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    module.apply_top_k_top_p_triton = apply_top_k_top_p


def keep_async_scheduling() -> None:
    """Undo the one line by which vLLM's CPU platform turns async scheduling off."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config
    if hasattr(original, "_specplug_test"):
        return

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        scheduler = vllm_config.scheduler_config
        requested = scheduler.async_scheduling
        original(vllm_config)
        scheduler.async_scheduling = requested

    check_and_update_config._specplug_test = True  # type: ignore[attr-defined]
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
