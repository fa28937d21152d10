"""Kinds of draft tokens, whose acceptance is counted apart."""

from __future__ import annotations

from typing import Any

from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import Pair
from specplug_crosstok.acceptance import Floats
from specplug_crosstok.drawing import NUM_LEVELS
from specplug_crosstok.writing import OPEN_WORD, SOURCES, TEXT

SAMPLED = len(SOURCES)
"""The first kind of sampled requests' tokens that were not drawn; greedy ones begin with 0.  One for each source."""

DRAWN = slice(2 * len(SOURCES), 2 * len(SOURCES) + NUM_LEVELS)
"""Drawn tokens, by the level of the common ids' share."""

TEXTS = slice(SAMPLED + TEXT, SAMPLED + OPEN_WORD + 1)
"""Sampled requests' tokens of texts."""

NUM_KINDS = DRAWN.stop


def status_of(model: DraftModel, pair: Pair, counts: Floats) -> dict[str, Any]:
    """Return the pair, and what its drafts were worth, by tested and accepted tokens [kinds, 2]."""
    shared = pair.intersection
    names = [f"{source}, {how}" for how in ("greedy", "sampled") for source in SOURCES]
    names += [f"drawn, share level {level}" for level in range(NUM_LEVELS)]
    return {
        "draft_model": model.path,
        "parameters": model.num_parameters,
        "same_tokenizer": pair.translator is None,
        "overlap_of_target_percent": round(shared.of_target, 1),
        "overlap_of_draft_percent": round(shared.of_draft, 1),
        "acceptance": {
            name: {"tested": int(tested), "acceptance_rate": float(accepted / tested)}
            for name, (tested, accepted) in zip(names, counts.tolist(), strict=True)
            if tested >= 1
        },
    }
