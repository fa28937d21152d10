"""Random corpora of the lookup, and runs that draft from them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch

from specplug.lookup import corpora
from specplug.lookup import layout as at
from specplug.lookup.corpora import Segment
from tests.lookup.runs import Run, Trapped

TENANTS = ("one", "two", "three")
NAMES = ("a", "b", "c")


def segment_of(documents: Sequence[tuple[str, Sequence[int]]]) -> Segment:
    """Return a segment of documents, each of a corpus."""
    text = [-1]
    starts = [1]
    for _, tokens in documents:
        text += [*tokens, -1]
        starts.append(len(text))
    names = sorted({name for name, _ in documents})

    def key(place: int) -> list[int]:
        found = text[max(place - at.LONGEST, 0) : place][::-1]
        return found[: found.index(-1) + 1] if -1 in found else found

    places = [p for p in range(1, len(text)) if text[p - 1] >= 0 and text[p] >= 0]
    places.sort(key=lambda place: (key(place), place))
    return Segment(
        np.array(text, np.int32),
        np.array(places, np.int32),
        np.array(starts),
        np.array([names.index(name) for name, _ in documents], np.int32),
        names,
    )


def some_segment(random: Random, tokens: int) -> Segment:
    """Return a segment of a few documents."""
    documents = []
    for _ in range(random.randint(1, 5)):
        text = [random.randrange(tokens) for _ in range(random.choice([1, 9, 60]))]
        documents.append((random.choice(NAMES), text * random.choice([1, 1, 2])))
    return segment_of(documents)


class Served(Run):
    """A run whose requests draft from corpora too; these are replaced at times.

    Attributes:
        copied: whether the arrays are copied, as to a GPU.
    """

    def __init__(self, *args: Any, copied: bool = False, **options: Any) -> None:
        self.copied, self.numbers = copied, corpora.Numbers()
        for name in TENANTS:
            self.numbers.tenant(name)
            for corpus in NAMES:
                self.numbers.corpus(name, corpus)
        super().__init__(*args, **options)
        self.replace()

    def replace(self) -> None:
        """Replace all corpora, and the tenants of some requests."""
        random = self.random
        self.tenants = {
            name: [some_segment(random, self.tokens) for _ in range(random.randint(0, 3))] for name in TENANTS
        }
        if random.random() < 0.2:
            del self.tenants[random.choice(TENANTS)]
        found = corpora.load(self.tenants, self.numbers, self.slots, copied=self.copied)
        self.state = corpora.use(self.state, found)

    def begin(self, slot: int) -> None:
        """Begin a request of a tenant, or of none; it may go on as a document does."""
        random = self.random
        super().begin(slot)
        tenant = random.choice([None, *TENANTS])
        named = random.sample(NAMES, random.randint(0, 2))
        corpora.assign(self.state, torch.tensor([slot]), [self.numbers.known_numbers(tenant, named)])

    def scramble(self) -> None:
        """Scramble the ring too, and let texts follow any places; most of them match little elsewhere."""
        random = self.random
        super().scramble()
        for slot in range(self.slots):
            tenant, n = int(self.state.scopes[slot, at.TENANT]), int(self.state.slots[slot, at.END])
            first, end = (
                self.state.tenants[tenant : tenant + 2].tolist() if tenant < len(self.state.tenants) - 1 else (0, 0)
            )
            if first < end and n > 2:
                segment, known = random.randrange(first, end), random.randint(max(n - 9, 1), n)
                place = random.randrange(1, int(self.state.segments[segment, corpora.LENGTH]))
                anchor = torch.tensor([segment, place, known, max(known - random.randrange(3), 1)])
                self.state.slots[slot, at.SEGMENT : at.FOLLOWED_AT + 1] = anchor
                self.texts[slot, n - 2] = random.choice([-1, -1, 0])

    def step(self) -> dict[str, Any]:
        """Step, after a text went on as one of a corpus does, or all corpora were replaced."""
        random = self.random
        if random.random() < 0.05:
            self.replace()
        texts = [it.text for several in self.tenants.values() for it in several]
        if texts and random.random() < 0.3:
            text = random.choice(texts)
            first = random.randrange(len(text))
            self.extend(random.randrange(self.slots), text[first : first + random.randint(1, 70)].tolist())
        return super().step()


class TrappedTenants(Trapped, Served):
    """A trapped run in which other tokens and places stand in a tenant's segments, or in all others'."""

    def __init__(self, *args: Any, own: bool) -> None:
        super().__init__(*args, own=own, copied=True)

    def planted(self, slot: int) -> dict[str, torch.Tensor]:
        tenant = int(self.state.scopes[slot, at.TENANT])
        changed = self.state.corpus.clone()
        for number in range(1, len(self.state.tenants) - 1):
            first, end = self.state.tenants[number : number + 2].tolist()
            for text, length, places, count, *_ in self.state.segments[first:end].tolist():
                for begin, stop in ((text + 1, text + length - 1), (places, places + count)):
                    if (number == tenant) == self.own:
                        changed[begin:stop] = torch.randint(0, self.tokens, (stop - begin,), dtype=torch.int32)
        return {"corpus": changed}
