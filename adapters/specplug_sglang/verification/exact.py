"""Exactness where SGLang's own verification is inexact: grammars over trees, and rows without drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug_sglang.requests import served_plainly
from specplug_sglang.verification.table import on_device
from specplug_sglang.verification.trees import Nodes


def rows_of_pool(server_args: Any) -> int:
    """Return the rows of SGLang's request pool, whose first one is padding."""
    from specplug_sglang.config import decided

    return int(decided(server_args).max_running_requests) + 1


def grammar_tree(batch: Any, nodes: Nodes) -> Any:
    """Start copying the nodes to the host for the grammars; None without a grammar in the batch."""
    if not batch.has_grammar:
        return None
    from sglang.srt.speculative.spec_utils import GrammarTree

    return GrammarTree.from_device(nodes.child, nodes.sibling, nodes.tokens)


def grammar_mask(batch: Any, tree: Any, device: torch.device) -> Any:
    """Return the mask of tokens that grammars forbid at each node; None without a grammar in the batch."""
    if tree is None:
        return None
    from sglang.srt.speculative.spec_utils import build_grammar_vocab_mask

    return build_grammar_vocab_mask(
        reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=device, barrier=None
    )


def sample_plainly(sampler: Any, batch: Any, logits: Any, predict: Tensor, n: int) -> None:
    """Resample the tokens of rows without drafts, as SGLang does without speculation.

    Verification has already applied penalties, grammars and biases to the logits, once, as plain decoding does.  This
    applies custom logit processors and the sampler, which supports min_p and seeds.

    Args:
        sampler: SGLang's, of the target.
        batch: the verified batch, n nodes per row, the root first.
        logits: SGLang's output of the forward pass, with "next_token_logits" [B * n, V]; the roots' rows are
            overwritten with the output of custom logit processors, from which log probabilities are computed.
        predict: [B * n] int32, the token after each node; replaced at the roots of plain rows.
        n: nodes per row.
    """
    rows = _plain_rows(batch)
    if not rows:
        return
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.runtime_context import get_parallel

    info = batch.sampling_info
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


def _plain_rows(batch: Any) -> list[int]:
    """Return the rows that get no drafts, without a loop over rows if SGLang's batch flags rule them out."""
    info = batch.sampling_info
    if (
        info.need_min_p_sampling
        or info.has_custom_logit_processor
        or info.acc_additive_penalties is not None
        or info.acc_scaling_penalties is not None
    ):
        return [row for row, req in enumerate(batch.reqs) if served_plainly(req) is not None]
    return []
