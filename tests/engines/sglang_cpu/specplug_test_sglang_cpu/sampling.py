"""Sampling in verification, which SGLang has on GPUs only: on a CPU it takes the likeliest token at any temperature."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sgl_kernel
from torch import Tensor

_KERNELS = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")


_originals: list[Callable[..., bool]] = []


def verifies_greedily_here() -> Callable[..., bool]:
    """Return SGLang's own function that decides whether verification takes the likeliest token."""
    return _originals[0]


def install() -> None:
    """Give SGLang's verification what it calls on a GPU."""
    import sglang.srt.speculative.eagle_utils as module

    _originals.append(module._verify_uses_greedy)

    @functools.wraps(module._verify_uses_greedy)
    def verify_uses_greedy(*, is_all_greedy: bool, **others: object) -> bool:
        return is_all_greedy

    module._verify_uses_greedy = verify_uses_greedy
    module.sampling_softmax = softmax
    for name in _KERNELS:
        if hasattr(module, name):  # 0.5.22 imports them from sgl_kernel at each step
            setattr(module, name, getattr(sgl_kernel, name))


def softmax(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Return the distribution [rows, V] float32 of logits [rows, V] at temperatures [rows, 1]."""
    return (logits.float() / temperatures).softmax(-1)
