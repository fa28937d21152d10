"""SGLang's own lossy acceptance, which two server arguments enable for every sampled request.

SGLang verifies; this module counts how far the text departs.  An operator may also change the thresholds of a running
server, so each step reads those that it was verified with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.metrics import LossyCounter
from specplug.seams.hook import hook
from specplug_sglang.config import lossy_arguments, resolved_args

counter = LossyCounter()
"""The counts of this process's scheduler."""

_KERNEL = "tree_speculative_sampling_target_only"


def install(server_args: Any) -> None:
    """Count what SGLang's verification by sampling accepts, in this process.

    Raises:
        EngineError: the server is lossy, and the function to count in is missing.
    """
    module = _home(server_args.device)
    if not hasattr(module, _KERNEL):  # SGLang has it on GPUs only, and verifies greedily elsewhere
        if server_args.device != "cpu" and lossy_arguments(resolved_args(server_args)):
            raise EngineError.build(
                "cannot count how far lossy acceptance departs",
                who="specplug_sglang",
                found=f"no {_KERNEL} where SGLang's verification takes it from",
                remedy="Leave out the acceptance thresholds",
            )
        return
    hook(module, _KERNEL, _sampled)


def _sampled(original: Callable[..., None], **given: Any) -> None:
    original(**given)
    single, acc = given["threshold_single"], given["threshold_acc"]
    if single < 1 or acc < 1:
        names = ("target_probs", "candidates", "accept_index", "accept_token_num")
        accepted = given["accept_token_num"]
        counter.add(accepted, departed(*(given[name] for name in names), single=single, acc=acc))


def _home(device: str) -> Any:
    """Return the module from which SGLang's verification takes the kernel, None if it cannot be imported."""
    import sglang.srt.speculative.eagle_utils as module

    if hasattr(module, _KERNEL):
        return module
    try:  # 0.5.22 imports the kernel at each step
        return importlib.import_module("sglang.kernels.ops.speculative.sampling" if device == "cuda" else "sgl_kernel")
    except ImportError:
        return None


def departed(
    target_probs: Tensor, candidates: Tensor, accept_index: Tensor, num_accepted: Tensor, *, single: float, acc: float
) -> Tensor:
    """Return [B] float32: the expected number of accepted tokens that lossless verification would have rejected.

    SGLang accepts a draft token of probability p with certainty if p >= `single`, else with probability
    min(1, p / acc); lossless verification accepts it with probability p.

    Args:
        target_probs: [B, n, V], the target's distribution after each node of a chain.
        candidates: [B, n], the nodes' tokens.
        accept_index: [B, d] int32, the accepted nodes from the root on, as indices into the B * n nodes.
        num_accepted: [B] int32, accepted draft tokens.
    """
    parents, children = accept_index[:, :-1].long(), accept_index[:, 1:].long()
    inside = torch.arange(children.shape[1], device=children.device) < num_accepted[:, None]
    tokens = candidates.flatten()[torch.where(inside, children, 0)].long()
    p = target_probs.flatten(0, 1)[torch.where(inside, parents, 0), tokens]
    accepts = torch.where(p >= single, 1.0, (p / max(acc, 1e-9)).clamp(max=1.0))
    return torch.where(inside, 1 - p / accepts.clamp(min=1e-30), 0.0).sum(1)
