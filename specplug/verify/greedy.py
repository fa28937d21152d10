"""Verification of batches in which all rows are greedy: it needs no distribution, only the largest logits.

This is the special case that `specplug.verify.reference` describes: a draft token is kept if and only if it is the
argmax, and the token after the kept ones is the argmax.  So the emitted tokens are the argmax at every position up to
and including the first one at which the draft differs.
"""

from __future__ import annotations

import torch

from specplug.types.draft import NO_TOKEN, Draft
from specplug.types.verification import TargetLogits, Verification


def verify_greedy(draft: Draft, target: TargetLogits) -> Verification:
    """Keep each row's longest draft prefix that equals the greedy output, and add one token.

    Equals `ReferenceVerifier` at temperature 0 for any top-k, top-p and min-p; ties in the logits go to the smallest
    id.  Takes O(B N) memory in addition to the logits, and reads nothing back.
    """
    places = torch.arange(draft.draft_length + 1, device=draft.device)
    lengths = draft.lengths[:, None]
    best = target.logits.argmax(-1)[target.starts[:, None] + torch.minimum(places, lengths)].to(torch.int32)
    kept = (best[:, : draft.draft_length] == draft.token_ids) & (places[: draft.draft_length] < lengths)
    num_accepted = kept.to(torch.int32).cumprod(1).sum(1, dtype=torch.int32)
    token_ids = torch.where(places <= num_accepted[:, None], best, NO_TOKEN)
    return Verification(token_ids, num_accepted)
