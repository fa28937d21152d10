"""What keeps verification exact where SGLang's own is not: grammars over trees, and rows that are served plainly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug_sglang.trees import Nodes


def rows_of_pool(server_args: Any) -> int:
    """Return the rows of SGLang's request pool, whose first one is padding."""
    from specplug_sglang.asked import decided

    return int(decided(server_args).max_running_requests) + 1


def grammar_tree(batch: Any, nodes: Nodes) -> Any:
    """Begin to copy the nodes to the host, where grammars are; None without a grammar in the batch."""
    if not batch.has_grammar:
        return None
    from sglang.srt.speculative.spec_utils import GrammarTree

    return GrammarTree.from_device(nodes.child, nodes.sibling, nodes.tokens)


def grammar_mask(batch: Any, tree: Any, device: torch.device) -> Any:
    """Return what grammars forbid at each node; None without a grammar in the batch."""
    if tree is None:
        return None
    from sglang.srt.speculative.spec_utils import build_grammar_vocab_mask

    return build_grammar_vocab_mask(
        reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=device, barrier=None
    )


def plain_rows(worker: Any, batch: Any, logits: Any, n: int) -> tuple[Tensor, Tensor] | None:
    """Sample the rows that get no drafts as SGLang samples without speculation; None where there are none."""
    return None


def put(predict: Tensor, plain: tuple[Tensor, Tensor] | None, n: int) -> None:
    """Put what was sampled plainly in the place of what verification drew."""
