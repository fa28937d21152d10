"""Start-up probe of a model: its logits through the engine's cache must match those of a plain forward pass.

The declarations of classes and configs (see `specplug_transformers.support`) do not catch models that attend to later
tokens, count positions differently, or keep state elsewhere.  The engine would silently serve wrong text for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug_transformers.runner import ModelRunner

_LENGTHS = (5, 7)  # tokens of the two texts
_LEAST_COSINE = {torch.float32: 0.999, torch.float64: 0.999}
_LEAST_COSINE_HALF = 0.9  # half precision rounds by shape, and may reroute mixtures of experts


def probe(runner: ModelRunner) -> None:
    """Run two texts in pieces, from different positions, one after rejected tokens, and compare the last logits.

    Raises:
        EngineError: they do not match those of a plain forward pass over each text.
    """
    ids = (3 + 7 * torch.arange(2 * _LENGTHS[1], device=runner.device)).reshape(2, -1) % runner.vocab_size
    rejected = ids[:, :4].clone()
    rejected[0, 2:] = ids[0, :2]
    runner.forward([0, 1], [0, 0], rejected)
    pieces = torch.stack([ids[1, 4:7], ids[0, 2:5]])
    found = runner.forward([1, 0], [4, 2], pieces)[:, -1]
    plain = torch.stack([_plain(runner, ids[1, : _LENGTHS[1]]), _plain(runner, ids[0, : _LENGTHS[0]])])
    cosine = float(torch.cosine_similarity(_centred(found), _centred(plain)).min())
    least = _LEAST_COSINE.get(runner.model.dtype, _LEAST_COSINE_HALF)
    if not cosine >= least:
        raise EngineError.build(
            f"model type {runner.model.config.model_type!r} cannot be served",
            who="specplug_transformers",
            found=f"logits with cosine similarity {cosine:.4f} to those of a plain forward pass",
            expected=f"at least {least}: attention to earlier tokens only, and positions that count from 0",
            remedy="Serve it without specplug",
        )


@torch.no_grad()
def _plain(runner: ModelRunner, ids: Tensor) -> Tensor:
    """Return the logits [V] after one text, from a forward pass without a cache."""
    logits: Tensor = runner.model(input_ids=ids[None], use_cache=False).logits
    return logits[0, -1].float()


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)
