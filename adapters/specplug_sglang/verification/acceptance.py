"""Acceptance of drafts: exact where SGLang's is inexact (grammars over trees, seeds, rows without drafts), or lossy.

SGLang's verification takes the likeliest token at any temperature where it has no kernels that sample: on CPUs, XPUs
and HIP.  Under deterministic inference it uses other random numbers than without speculation; the last one comes from
the column after the draft, and so changes with the draft length.  In both cases the token after every node is drawn
here as SGLang draws it without speculation, and a draft token is accepted if it equals that token.  So sampled text has
the target's distribution, and that of a seed depends on neither the drafts nor their length.

Two server arguments enable SGLang's own lossy acceptance for every sampled request.  SGLang verifies, and how far the
text departs is counted here.  An operator may also change the thresholds of a running server, so each step reads those
that it was verified with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.metrics import LossyCounter
from specplug.seams.seam import hook
from specplug.types.tensors import on_device
from specplug_sglang.config import lossy_arguments, resolved_args, verifies_greedily
from specplug_sglang.requests import inexact_feature


def sample_plainly(sampler: Any, batch: Any, logits: Any, predict: Tensor, n: int) -> None:
    """Resample the tokens of rows without drafts, as SGLang does without speculation.

    Verification has already applied penalties, grammars and biases to the logits, once, as plain decoding does.  This
    applies custom logit processors and the sampler, which supports min_p and seeds.

    Args:
        sampler: SGLang's, of the target.
        batch: the verified batch, `n` nodes per row, the root first.
        logits: SGLang's output of the forward pass, with "next_token_logits" [B * n, V]; the roots' rows are
            overwritten with the output of custom logit processors, from which log probabilities are computed.
        predict: [B * n] int32, the token after each node; replaced at the roots of plain rows.
    """
    info = batch.sampling_info
    if not (
        info.need_min_p_sampling
        or info.has_custom_logit_processor
        or info.acc_additive_penalties is not None
        or info.acc_scaling_penalties is not None
    ):
        return  # SGLang's flags rule such rows out, without a loop over requests
    rows = [row for row, req in enumerate(batch.reqs) if inexact_feature(req) is not None]
    if not rows:
        return
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.runtime_context import get_parallel

    roots = logits.next_token_logits.unflatten(0, (len(batch.reqs), n))[:, 0]  # [B, V], a view
    own = roots.clone()
    if info.has_custom_logit_processor:
        own = sampler._preprocess_logits(own, info)
        roots.copy_(own)
        info = replace(info, has_custom_logit_processor=False)
    tokens = sampler(LogitsProcessorOutput(next_token_logits=own), info, False, [], [], batch.seq_lens)
    tokens = tokens.to(torch.int32)
    get_parallel().tp_group.broadcast(tokens, src=0)  # as verification does for its own draws
    which = on_device(rows, torch.int64, predict.device)
    predict[which * n] = tokens[which]


Verified = tuple[Tensor, Tensor, Tensor]
"""`predict`, `accept_lens` and `accept_index`, as SGLang's `eagle_sample` returns them."""


def sample(
    sampler: Any, original: Callable[..., Verified], nodes: Any, batch: Any, *args: Any, **kwargs: Any
) -> Verified:
    """Accept draft tokens that the target has verified, and emit one more per request, as SGLang's `eagle_sample` does.

    Where that would be inexact, tokens are drawn by the target's `sampler`.
    """
    info = batch.sampling_info
    if info.is_all_greedy or (info.sampling_seed is None and not verifies_greedily()):
        return original(nodes, batch, *args, **kwargs)
    # Greedy verification is the cheapest, and changes the logits as any other does.
    batch.sampling_info = replace(info, is_all_greedy=True)
    try:
        alike = original(nodes, batch, *args, **kwargs)
    finally:
        batch.sampling_info = info
    return _accept(nodes, _drawn(sampler, nodes, info, args[0]), alike)


def _drawn(sampler: Any, nodes: Any, info: Any, logits: Any) -> Tensor:
    """Return [B, n] int64: the token after each of SGLang's `nodes`, as SGLang draws it without speculation.

    It draws one node per row at a time, because SGLang hashes a number for every token of the vocabulary.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.runtime_context import get_parallel

    n = nodes.draft_token_num
    # Rows with a custom logit processor have no drafts; `sample_plainly` draws them later.
    info = replace(info, has_custom_logit_processor=False)
    rows = logits.next_token_logits.unflatten(0, (-1, n))
    positions = nodes.positions.view(-1, n)
    tokens = []
    for node in range(n):
        own = LogitsProcessorOutput(next_token_logits=rows[:, node].clone())
        tokens.append(sampler(own, info, False, [], [], positions[:, node].contiguous()).long())
    drawn = torch.stack(tokens, 1)
    get_parallel().tp_group.broadcast(drawn, src=0)  # as verification does for its own draws
    return drawn


def _accept(nodes: Any, drawn: Tensor, alike: Verified) -> Verified:
    """Walk each row from its root along SGLang's `nodes` that hold the tokens `drawn` [B, n] int64 after each node.

    `alike` are templates for the shapes and dtypes of the results.
    """
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_func

    n = nodes.draft_token_num
    predict, accept_lens, accept_index = alike
    predict, accept_index, accepted = verify_tree_greedy_func(
        predicts=torch.zeros_like(predict),
        accept_index=torch.full_like(accept_index, -1),
        accept_token_num=torch.empty_like(accept_lens),
        candidates=nodes.draft_token.view(-1, n),
        retrieve_index=nodes.retrieve_index,
        retrieve_next_token=nodes.retrieve_next_token,
        retrieve_next_sibling=nodes.retrieve_next_sibling,
        target_predict=drawn,
        topk=nodes.tree_topk,
    )
    return predict, accepted + 1, accept_index


counter = LossyCounter()
"""The counts of this process's scheduler."""

_KERNEL = "tree_speculative_sampling_target_only"


def count_lossy(server_args: Any) -> None:
    """Count what this process verifies by sampling; refuse a lossy server without the kernel (`EngineError`)."""
    module = _home(server_args.device)
    if not hasattr(module, _KERNEL):  # SGLang has it on GPUs only; elsewhere `sample` draws, losslessly
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
    single = given["threshold_single"]
    acc = given["threshold_acc"]
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
    parents = accept_index[:, :-1].long()
    children = accept_index[:, 1:].long()
    inside = torch.arange(children.shape[1], device=children.device) < num_accepted[:, None]
    tokens = candidates.flatten()[torch.where(inside, children, 0)].long()
    p = target_probs.flatten(0, 1)[torch.where(inside, parents, 0), tokens]
    accepts = torch.where(p >= single, 1.0, (p / max(acc, 1e-9)).clamp(max=1.0))
    return torch.where(inside, 1 - p / accepts.clamp(min=1e-30), 0.0).sum(1)
