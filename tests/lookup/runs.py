"""Random runs of the lookup by any of its forms."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import torch

from specplug.lookup import layout as at

LENGTH, POISON = 96, 10**9 + 7


class Run:
    """A random run: requests that begin in used slots, steps of some rows in any order, responses, and rarer events.

    Texts have few tokens and often go on as drafted, so that matches and chains abound; the ring is small, so that it
    wraps and owners share buckets; what lies beyond a text's end looks like text.  The next run of an equal `random` is
    the same run, as long as drafts are, whatever forms run its steps; it may pass the rows of each step in the opposite
    order.
    """

    def __init__(
        self, random: Random, form: ModuleType, memory: Callable[[Any], Any] = at.views, *, opposite: bool = False
    ) -> None:
        self.random, self.form, self.memory, self.opposite = random, form, memory, opposite
        self.slots, self.draft_length = random.randint(1, 4), random.choice([1, 3, 8])
        self.tokens = random.randint(1, 5)
        self.state = at.allocate(self.slots, LENGTH, self.draft_length, random.choice([256, 1024]))
        if random.random() < 0.5:  # some rows of counts are large
            noise = np.random.default_rng(random.randrange(1 << 30))
            tries = noise.integers(0, 5000 * at.UNIT, len(self.state.counts))
            hits = (tries * noise.random(len(tries))).astype(np.int64)
            self.state.counts[:] = torch.from_numpy(np.stack((hits, tries), 1))
        self.texts = torch.tensor([self.some(LENGTH) for _ in range(self.slots)], dtype=torch.int32)
        self.lengths, self.starts = [0] * self.slots, [0] * self.slots
        self.generations, self.owners = [0] * self.slots, [0] * self.slots
        self.begun = 0
        for slot in range(self.slots):
            self.begin(slot)

    def some(self, count: int) -> list[int]:
        """Return random tokens, a few of which are not text."""
        random = self.random
        return [
            random.randrange(self.tokens) if random.random() < 0.97 else random.choice([-1, -9]) for _ in range(count)
        ]

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the form."""
        tensors = (
            self.memory(it) if isinstance(it, (at.State, at.Rows, at.Drafts))
            else it.numpy() if isinstance(it, torch.Tensor) and self.memory is at.views else it
            for it in args
        )  # fmt: skip
        getattr(self.form, name)(*tensors)

    def begin(self, slot: int) -> None:
        """Begin a request in a slot, often with a reference, and with an earlier text's prompt."""
        random = self.random
        self.begun += 1
        start, length = random.choice([0, 0, 12]), random.randint(1, 40)
        if random.random() < 0.5:
            self.texts[slot] = self.texts[random.randrange(self.slots)].clone()
        if start:
            self.texts[slot, start - 1] = -1
        self.lengths[slot], self.starts[slot] = start + length, start
        self.generations[slot], self.owners[slot] = self.begun, random.randint(0, 3)
        facts = (torch.tensor([it[slot]], dtype=torch.int32) for it in (self.generations, self.owners, self.starts))
        at.begin(self.state, torch.tensor([slot]), *facts)

    def remember(self) -> None:
        """Remember a piece of a text, for any owner."""
        random, slot = self.random, self.random.randrange(self.slots)
        first, last = sorted((random.randrange(LENGTH + 1), random.randrange(LENGTH + 1)))
        prompt = random.randint(0, first)
        self.call(
            "remember", self.state, self.texts, slot, prompt, first, last, random.randint(1, 3), random.randrange(9)
        )

    def scramble(self) -> None:
        """Fill the ring with random tokens of random owners, and the buckets with places that are live or dead."""
        noise, state = np.random.default_rng(self.random.randrange(1 << 30)), self.state
        capacity = len(state.ring)
        state.end[0] = 3 * capacity
        ring = noise.integers(-1 if self.random.random() < 0.3 else 0, self.tokens, capacity)
        places = noise.integers(2 * capacity - 99, 3 * capacity + 20, tuple(state.buckets.shape))
        for tensor, values in (
            (state.ring, ring), (state.owners, noise.integers(0, 3, len(state.owners))), (state.buckets, places)
        ):  # fmt: skip
            tensor[:] = torch.from_numpy(values)

    def step(self) -> dict[str, Any]:
        """Step; return all that was written."""
        random = self.random
        slots = random.sample(range(self.slots), random.randint(1, self.slots))
        generations = [self.generations[slot] - (random.random() < 0.05) for slot in slots]
        limits = [random.choice([0, 1, 2, 99, 99, 99]) for _ in slots]
        facts = (generations, [self.lengths[slot] for slot in slots], limits)
        order = list(range(len(slots)))[:: -1 if self.opposite else 1]
        rows = at.Rows(torch.tensor(slots)[order], *(torch.tensor(it, dtype=torch.int32)[order] for it in facts))
        shape = len(slots), self.draft_length
        drafts = at.Drafts(
            torch.full(shape, POISON),
            torch.full(shape, torch.nan),
            torch.full(shape, POISON, dtype=torch.int32),
            torch.full(shape[:1], POISON, dtype=torch.int32),
        )
        self.call("scan", self.state, self.texts, rows)
        matches = self.state.matches[: len(slots)].amax(1)[order]
        self.call("draft", self.state, self.texts, rows, drafts, random.choice([2, 100]))
        drafts = at.Drafts(*(tensor[order] for tensor in drafts))
        for row, slot in enumerate(slots):
            self.extend(slot, drafts.ids[row, : random.randint(0, int(drafts.lengths[row]))].tolist())
        written = {**self.state._asdict(), **{f"draft {name}": it for name, it in drafts._asdict().items()}}
        written |= {"matches": matches, "found": torch.empty(0)}  # the rest of these is scratch
        return {name: tensor.clone() for name, tensor in written.items()}

    def extend(self, slot: int, accepted: list[int]) -> None:
        """Go on with a text, by what was accepted of its draft and another token; at times a text is cut instead."""
        new = [*accepted, *self.some(1)] if self.random.random() < 0.8 else accepted
        length = self.lengths[slot]
        if self.random.random() < 0.05:
            self.lengths[slot] = max(1, length - self.random.randint(1, 9))
        elif length + len(new) <= LENGTH:
            self.texts[slot, length : length + len(new)] = torch.tensor(new, dtype=torch.int32)
            self.lengths[slot] += len(new)
        else:
            self.begin(slot)

    def steps(self, count: int) -> list[dict[str, Any]]:
        """Return what each of the next steps wrote."""
        found = []
        for _ in range(count):
            for _ in range(self.random.choice([0, 0, 1, 2])):
                self.remember()
            if self.random.random() < 0.1:
                self.begin(self.random.randrange(self.slots))
            if self.random.random() < 0.1:
                at.halve(self.state)
            if self.random.random() < 0.02:
                at.clear(self.state)
            found.append(self.step())
        return found


def assert_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Raise at the first difference."""
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        for name in left:
            assert torch.equal(left[name], right[name]), (number, name, (left[name] != right[name]).nonzero()[:9])
