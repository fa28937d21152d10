"""Mends sampling under speculation on vLLM's V1 runner on a CPU: a general plug-in of vLLM's, for tests.

There vLLM replaces the kernel that spreads each request's temperature, top-k and top-p over its draft tokens by a
stand-in that writes to a converted copy of its output.  What is then used is uninitialised memory.  GPUs run the kernel
itself.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Replace the stand-in, before workers look it up."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = expand


def expand(
    output: Any, values: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
) -> None:
    """Repeat `values` [B] in `output` [T], as often as `cu_num_tokens` [B] says, with `replace_from` replaced."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = values.masked_fill(values == replace_from, replace_to)
    output.copy_(values.repeat_interleave(counts.long()))
