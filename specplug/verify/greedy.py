"""Verification of batches that are greedy throughout: no law is needed, only the largest logits.

The special case that `specplug.verify.reference` describes: a draft token is kept exactly when it is the argmax, and
the token behind those kept is the argmax.  So what is emitted is the argmax at every position up to the first that the
draft has missed.
"""

from __future__ import annotations

import torch

from specplug.types.draft import NO_TOKEN, Draft
from specplug.types.verification import TargetLogits, Verification


def verify_greedy(draft: Draft, target: TargetLogits) -> Verification:
    """Keep each row's draft as far as it is what greedy decoding emits, and add one token.

    Equals `ReferenceVerifier` at temperature 0 (of logits that tie, the smallest id counts), whatever top-k, top-p and
    min-p are.  Takes O(B N) memory beside the logits, and reads nothing back.
    """
    places = torch.arange(draft.draft_length + 1, device=draft.device)
    lengths = draft.lengths[:, None]
    best = target.logits.argmax(-1)[target.starts[:, None] + torch.minimum(places, lengths)].to(torch.int32)
    kept = (best[:, : draft.draft_length] == draft.token_ids) & (places[: draft.draft_length] < lengths)
    num_accepted = kept.to(torch.int32).cumprod(1).sum(1, dtype=torch.int32)
    token_ids = torch.where(places <= num_accepted[:, None], best, NO_TOKEN)
    return Verification(token_ids, num_accepted)
