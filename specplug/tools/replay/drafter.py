"""A simulated drafter of the engine's own, such as an EAGLE head, for requests whose output is known."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from specplug.tools.replay.items import TokenItem


class SimulatedDrafter:
    """Drafts G tokens for an item's output, right with the probability `rates[j]` at position j if those before it are.

    Draws depend on the item's id, the place in its output and the position, so that what else drafts changes none of
    them.  They do not depend on the text: a model's own errors are where the text is hard, and so are lookup's.
    """

    def __init__(self, item: TokenItem, rates: Sequence[float]) -> None:
        seed = np.random.default_rng(zlib.crc32(item.id.encode()))
        self._output = item.output.tolist()
        self._right = seed.random((len(self._output), len(rates))) < rates

    def draft(self, place: int) -> list[int]:
        """Return the draft [G] that follows the first `place` tokens of the output; after its end, tokens are wrong."""
        drafted = []
        for position, is_right in enumerate(self._right[place].tolist()):
            token = self._output[min(place + position, len(self._output) - 1)]
            is_right = is_right and place + position < len(self._output)
            drafted.append(token if is_right else token - 1 if token else 1)
        return drafted
