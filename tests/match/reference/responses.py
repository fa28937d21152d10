"""The reference of `Responses` in plain Python: when places are forgotten, and which owner may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specplug.match.cpu.recency import GRANULE
from specplug.match.cpu.responses import MOST_PLACES
from specplug.match.cpu.texts import NO_TEXT


@dataclass
class Memory:
    """The responses in sequence, separated by NO_TEXT; only the newest `size` tokens are kept."""

    size: int
    text: list[int] = field(default_factory=lambda: [NO_TEXT] * GRANULE)
    owners: list[int] = field(default_factory=lambda: [0] * GRANULE)
    places: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The first place after all responses; 0 for none."""
        return len(self.text) if len(self.text) > GRANULE else 0

    def add(self, owner: int, context: Sequence[int], response: Sequence[int]) -> None:
        """Append a response after its context, whose places are not drafted from."""
        response = response[-(self.size // 2) :]
        if self.end + self.size > MOST_PLACES:
            self.text, self.owners, self.places = [NO_TEXT] * GRANULE, [0] * GRANULE, []
        if self.end:
            gap = GRANULE - len(self.text) % GRANULE
            self.text += [NO_TEXT] * gap
            self.owners += [self.owners[-1]] * gap
        self.text += [*context, *response]
        self.owners += [owner] * (len(context) + len(response))
        self.places += range(len(self.text) - len(response) + 1, len(self.text))

    def places_of(self, owner: int, cap: int) -> list[int]:
        """Return the places in texts of an owner that are not forgotten."""
        oldest = self.end + 1 - self.size
        first = oldest + max(cap, GRANULE) if oldest > 0 else 0
        return [place for place in self.places if place > first and self.owners[place - 1] == owner]
