"""Random runs of the lookup by any of its forms."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import torch

from specplug.lookup import layout as at
from specplug.lookup import storage

LENGTH, POISON = 96, 10**9 + 7
"""Tokens of a text, and what memory holds before it is written."""


class Run:
    """A random run: requests that begin in used slots, steps of some rows in any order, responses, and rarer events.

    Texts have few tokens and often go on as drafted, so that matches and chains abound; the ring is small, so that it
    wraps and owners share buckets; what lies beyond a text's end looks like text.  Some runs draft trees, in others the
    engine drafts too; texts are often siblings.  The next run of an equal `random` is the same run, as long as drafts
    are, whatever forms run its steps; it may pass the rows of each step in the opposite order.
    """

    def __init__(
        self, random: Random, form: ModuleType, memory: Callable[[Any], Any] = storage.views, *, opposite: bool = False
    ) -> None:
        self.random, self.form, self.memory, self.opposite = random, form, memory, opposite
        self.slots, self.draft_length = random.randint(1, 4), random.choice([1, 3, 8])
        self.tokens = random.randint(1, 5)
        self.trees, self.engine_tokens = random.choice([(False, 0), (False, 3), (True, 0)])
        self.state = storage.allocate(
            self.slots,
            LENGTH,
            self.draft_length,
            random.choice([256, 1024]),
            engine_tokens=self.engine_tokens,
            trees=self.trees,
            shortest=random.choice([0, 0, 2]),
            least=random.choice([at.LEAST_SURVIVAL, at.SURE // 4]),
            engine_source=random.choice([3, 4]),
        )
        if random.random() < 0.5:  # some rows of counts are large
            noise = np.random.default_rng(random.randrange(1 << 30))
            tries = noise.integers(1, 5000 * at.UNIT, len(self.state.counts))
            hits = (tries * noise.random(len(tries))).astype(np.int64)
            self.state.counts[:] = torch.from_numpy(np.stack((hits, tries), 1))
        self.texts = torch.tensor([self.some(LENGTH) for _ in range(self.slots)], dtype=torch.int32)
        self.table = self.texts.clone()
        self.lengths, self.known = [0] * self.slots, [0] * self.slots
        self.generations, self.owners = [0] * self.slots, [0] * self.slots
        self.begun, self.joined = 0, 0
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
            self.memory(it) if isinstance(it, tuple)
            else it.numpy() if isinstance(it, torch.Tensor) and self.memory is storage.views else it
            for it in args
        )  # fmt: skip
        getattr(self.form, name)(*tensors)

    def begin(self, slot: int) -> None:
        """Begin a request in a slot, often with a reference, and with an earlier text's prompt."""
        random = self.random
        self.begun += 1
        start, length = random.choice([0, 0, 12]), random.randint(1, 40)
        if random.random() < 0.5:
            self.table[slot] = self.table[random.randrange(self.slots)].clone()
        if start:
            self.texts[slot, :start] = torch.tensor([*self.some(start - 1), -1], dtype=torch.int32)
        self.lengths[slot], self.known[slot] = length, 0
        self.generations[slot], self.owners[slot] = self.begun, random.randint(0, 3)
        facts = (torch.tensor([it], dtype=torch.int32) for it in (self.begun, self.owners[slot], start))
        storage.begin(self.state, torch.tensor([slot]), *facts)
        if random.random() < 0.6:
            self.joined += 1
            group, room = random.randint(4, 5), random.choice([9, 99])
            storage.join(self.state, slot, group, self.joined, start + random.randint(0, length), room)

    def remember(self) -> None:
        """Remember a piece of a text, for any owner; the text may end before it does."""
        random, slot = self.random, self.random.randrange(self.slots)
        most = min(int(self.state.slots[slot, at.END]) + 3, LENGTH)
        first, last = sorted((random.randrange(most + 1), random.randrange(most + 1)))
        prompt = random.randint(0, first)
        self.call(
            "remember", self.state, self.texts, slot, prompt, first, last, random.randint(1, 3), random.randrange(9)
        )

    def scramble(self) -> None:
        """Fill the ring with random tokens of random owners, and the buckets with places that are live or dead."""
        noise, state = np.random.default_rng(self.random.randrange(1 << 30)), self.state
        capacity = len(state.ring)
        state.end[0] += 2 * capacity  # it never goes back, or spans of a running text and of a later one overlap
        end = int(state.end[0])
        ring = noise.integers(-1 if self.random.random() < 0.3 else 0, self.tokens, capacity)
        places = noise.integers(end - capacity - 99, end + 20, tuple(state.buckets.shape))
        for tensor, values in (
            (state.ring, ring), (state.owners, noise.integers(0, 3, len(state.owners))), (state.buckets, places)
        ):  # fmt: skip
            tensor[:] = torch.from_numpy(values)

    def step(self) -> dict[str, Any]:
        """Step; return all that was written, in memory that the next step writes to."""
        random = self.random
        slots = random.sample(range(self.slots), random.randint(1, self.slots))
        generations = [self.generations[slot] - (random.random() < 0.05) for slot in slots]
        limits = [random.choice([0, 1, 2, 99, 99, 99]) for _ in slots]
        facts = (generations, [self.lengths[slot] for slot in slots], limits)
        order = list(range(len(slots)))[:: -1 if self.opposite else 1]
        rows = at.Rows(torch.tensor(slots)[order], *(torch.tensor(it, dtype=torch.int32)[order] for it in facts))
        source = self.source(slots)
        source = source._replace(**{name: it[order] for name, it in source._asdict().items() if name != "table"})
        drafts = storage.drafts_of(len(slots), self.draft_length, trees=self.trees)
        for tensor in drafts:
            tensor.fill_(POISON)
        self.state.nodes.fill_(POISON)
        self.call("ingest", self.state, self.texts, rows, source, True)
        self.call("scan", self.state, self.texts, rows)
        self.call("search", self.state, self.texts, rows)
        matches = self.state.matches[: len(slots)].amax(1)[order]
        vocab_size = random.choice([2, 100])
        self.call("draft", self.state, self.texts, rows, drafts, vocab_size)
        if self.engine_tokens:
            self.call("append", self.state, self.texts, rows, self.engine_ids(len(slots))[order], drafts)
            self.call("scan", self.state, self.texts, rows)
            matches = self.state.matches[: len(slots)].amax(1)[order]
            self.call("draft", self.state, self.texts, rows, drafts, vocab_size)
        drafts = at.Drafts(*(tensor[order] if len(tensor) else tensor for tensor in drafts))
        for row, slot in enumerate(slots):
            if generations[row] == self.generations[slot]:
                self.known[slot] = self.lengths[slot]
            self.extend(slot, self.path(drafts, row))
        written = {**self.state._asdict(), **{f"draft {name}": it for name, it in drafts._asdict().items()}}
        scratch = {name: torch.empty(0) for name in ("candidates", "nodes", "corpus", "segments", "corpus_matches")}
        scratch["matches"] = matches
        return {**written, "texts": self.texts, **scratch}

    def source(self, slots: list[int]) -> at.Source:
        """Return the rows' new tokens in a window, at times more or fewer than are new.

        Where more are passed, some are no longer what they were.
        """
        random = self.random
        begins = []
        for slot in slots:
            begin = self.known[slot] + (random.choice([-3, -1, 1, 2]) if random.random() < 0.1 else 0)
            begins.append(min(max(begin, 0), self.lengths[slot]))
            if begins[-1] < self.known[slot]:
                self.table[slot, begins[-1]] = self.some(1)[0]
        firsts = [random.choice([0, begin]) for begin in begins]
        columns = LENGTH + 1
        table = torch.full((self.slots, columns), POISON, dtype=torch.int32)
        lines = random.sample(range(self.slots), len(slots))
        for slot, line, first in zip(slots, lines, firsts, strict=True):
            table[line, : LENGTH - first] = self.table[slot, first:]
        num_new = [self.lengths[slot] - begin for slot, begin in zip(slots, begins, strict=True)]
        ints = (torch.tensor(it, dtype=torch.int32) for it in (firsts, num_new))
        return at.Source(table, torch.tensor(lines), *ints)

    def engine_ids(self, rows: int) -> torch.Tensor:
        """Return random drafts of the engine's own drafter."""
        found = torch.full((rows, self.engine_tokens), -1, dtype=torch.int32)
        for row in found:
            drafted = [self.random.randrange(self.tokens) for _ in range(self.random.randint(0, self.engine_tokens))]
            row[: len(drafted)] = torch.tensor(drafted, dtype=torch.int32)
        return found

    def path(self, drafts: at.Drafts, row: int) -> list[int]:
        """Return a beginning of a row's draft, of a tree that of a path."""
        number = self.random.randint(0, int(drafts.lengths[row]))
        ids = drafts.ids[row].tolist()
        if not self.trees:
            return ids[:number]
        parents, found, node = drafts.parents[row].tolist(), [], number - 1
        while node >= 0:
            found.append(ids[node])
            node = parents[node]
        return found[::-1]

    def extend(self, slot: int, accepted: list[int]) -> None:
        """Go on with a text, by what was accepted of its draft and another token; at times a text is cut instead."""
        new = [*accepted, *self.some(1)] if self.random.random() < 0.8 else accepted
        length = self.lengths[slot]
        if self.random.random() < 0.05:
            self.lengths[slot] = max(1, length - self.random.randint(1, 9))
            self.known[slot] = min(self.known[slot], self.lengths[slot])
        elif length + len(new) <= LENGTH:
            self.table[slot, length : length + len(new)] = torch.tensor(new, dtype=torch.int32)
            self.lengths[slot] += len(new)
        else:
            self.begin(slot)

    def go_on(self) -> dict[str, Any]:
        """Step after some of what happens between steps; see `step`."""
        for _ in range(self.random.choice([0, 0, 1, 2])):
            self.remember()
        if self.random.random() < 0.1:
            self.begin(self.random.randrange(self.slots))
        if self.random.random() < 0.1:
            storage.halve(self.state)
        if self.random.random() < 0.02:
            storage.clear(self.state)
        return self.step()

    def steps(self, count: int) -> None:
        """Go on for so many steps."""
        for _ in range(count):
            self.go_on()


class Trapped(Run):
    """A run in which each row's step is made twice: once more with some tokens changed.

    These are tokens that the row may draft from if `own`, otherwise all others.

    Attributes:
        changed: rows with other drafts.
    """

    def __init__(self, *args: Any, own: bool, **options: Any) -> None:
        self.own = own
        self.changed = 0
        super().__init__(*args, **options)

    def step(self) -> dict[str, Any]:
        """Draft for each row, with the memory as it is and with changed tokens."""
        for slot in range(self.slots):
            other = at.State(*(tensor.clone() for tensor in self.state))._replace(**self.planted(slot))
            source = self.source([slot])
            steps = (self.state, self.texts), (other, self.texts.clone())
            found = [self.drafted(state, texts, slot, source) for state, texts in steps]
            self.changed += not all(map(torch.equal, *found))
            self.known[slot] = self.lengths[slot]
            self.extend(slot, self.path(at.Drafts(*found[0][:5]), 0))
        return {}

    def planted(self, slot: int) -> dict[str, torch.Tensor]:
        """Return the ring with other tokens."""
        owners = self.state.owners
        may_read = (owners == self.owners[slot]) | (owners == self.state.slots[slot, at.GROUP])
        granules = may_read if self.own else ~may_read
        noise = torch.randint(0, self.tokens, self.state.ring.shape, dtype=torch.int32)
        return {"ring": torch.where(granules.repeat_interleave(at.GRANULE), noise, self.state.ring)}

    def drafted(self, state: at.State, texts: torch.Tensor, slot: int, source: at.Source) -> list[torch.Tensor]:
        """Return all that a step of one row writes."""
        facts = self.generations[slot], self.lengths[slot], 99
        rows = at.Rows(torch.tensor([slot]), *(torch.tensor([it], dtype=torch.int32) for it in facts))
        drafts = storage.drafts_of(1, self.draft_length, trees=self.trees)
        for name, more in (("ingest", (source, True)), ("scan", ()), ("search", ()), ("draft", (drafts, 100))):
            self.call(name, state, texts, rows, *more)
        return [*drafts, state.slots, state.chain, state.voted, state.counts]


def assert_equal_steps(one: Run, other: Run, count: int) -> int:
    """Let two runs go on, and compare what each step writes; return the longest draft."""
    longest = 0
    for number in range(count):
        left, right = one.go_on(), other.go_on()
        for name in left:
            assert torch.equal(left[name], right[name]), (number, name, (left[name] != right[name]).nonzero()[:9])
        longest = max(longest, int(left["draft lengths"].max()))
    return longest
