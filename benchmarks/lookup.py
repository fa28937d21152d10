"""Time of a step of `specplug.lookup` on a CPU, on one thread.

    python -m benchmarks.lookup [--cases 1x8192 32x8192 256x8192 1x32768]

Texts of Python's library are decoded step by step, 15 tokens at a time, after as many responses as the memory holds
have finished; each row goes on by what its draft got right and one token.  It prints the median microseconds of a step,
the range of the medians of `ROUNDS` rounds, and the tokens per step.  `specplug replay` measures quality.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.gpu.texts import library_tokens, set_aside
from specplug.lookup import compiled, storage
from specplug.lookup import layout as at

K = 15
VOCAB_SIZE = 1 << 20
OWNER = 1
WARM_UP = 8
ROUNDS = 9
STEPS = 20


class Texts:
    """`specplug.lookup` for B texts of at most L tokens; row and slot are the same.

    Attributes:
        texts: [B, L] int32; lengths: [B] int32; drafts: see `layout.Drafts`.
    """

    def __init__(self, texts: torch.Tensor, ring: int) -> None:
        batch, length = texts.shape
        self._state = storage.allocate(batch, length, K, ring)
        self._texts = texts
        self._ids = torch.arange(batch)
        self._known, generations, self.lengths, firsts, self._new = torch.zeros(5, batch, dtype=torch.int32)
        self._rows = at.Rows(self._ids, generations, self.lengths, torch.full((batch,), K, dtype=torch.int32))
        self._source = storage.views(at.Source(texts, self._ids, firsts, self._new))
        self.drafts = storage.drafts_of(batch, K)
        self._step = storage.views(self._state), torch.full_like(texts, -1).numpy(), storage.views(self._rows)
        self._responses = 0
        self._steps = 0

    def begin(self) -> None:
        """Begin a request in each slot."""
        self._rows.generations.add_(1)
        owners = torch.full_like(self.lengths, OWNER)
        storage.begin(self._state, self._ids, self._rows.generations, owners, torch.zeros_like(owners))
        self._known.zero_()

    def draft(self) -> None:
        """Step."""
        self._steps += 1
        if self._steps % at.HALVED_EVERY == 0:
            storage.halve(self._state)
        torch.sub(self.lengths, self._known, out=self._new)
        compiled.ingest(*self._step, self._source, True)
        self._known.copy_(self.lengths)
        compiled.scan(*self._step)
        compiled.draft(*self._step, storage.views(self.drafts), VOCAB_SIZE)

    def remember(self, text: torch.Tensor, prompt: int) -> None:
        """Remember what comes after a text's prompt."""
        self._state.slots[0, at.END] = len(text)
        compiled.remember(self._step[0], text[None].numpy(), 0, 0, prompt, len(text), OWNER, self._responses)
        self._responses += 1

    def accepted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of each draft, [B] int32, and how many of them the text goes on with."""
        lengths = self.drafts.lengths
        return lengths, right(self.drafts.ids, lengths, self._texts, self.lengths)


def right(ids: torch.Tensor, counts: torch.Tensor, texts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return how many tokens at the beginning of each draft its text goes on with, [B] int32."""
    columns = torch.arange(K)
    places = lengths[:, None].long() + columns
    inside = (columns < counts[:, None]) & (places < texts.shape[1])
    is_right = inside & (texts.gather(1, places.clamp(max=texts.shape[1] - 1)) == ids[:, :K])
    return is_right.int().cumprod(1).sum(1).int()


def timed(batch: int, context: int) -> None:
    """Print the time of a step."""
    tokens, finished = set_aside(library_tokens(1_200_000 + 64 * batch + (1 << 22)))
    room = context + (WARM_UP + ROUNDS * STEPS) * (K + 1)
    starts = np.linspace(0, len(tokens) - room, batch).astype(np.int64)
    texts = Texts(torch.from_numpy(np.stack([tokens[start : start + room] for start in starts])), 1 << 20)
    for response in finished:
        texts.remember(response, 3)
    texts.lengths[:] = context
    texts.begin()
    times: list[float] = []
    emitted = 0
    for _ in range(WARM_UP + ROUNDS * STEPS):
        times.append(clocked(texts.draft))
        new = texts.accepted()[1] + 1
        texts.lengths += new
        emitted += int(new.sum()) * (len(times) > WARM_UP)
    medians = [statistics.median(it) for it in np.array_split(times[WARM_UP:], ROUNDS)]
    stated = f"{statistics.median(times[WARM_UP:]):8.1f} us ({min(medians):.1f} to {max(medians):.1f})"
    print(f"{batch:4} x {context:6}: {stated}, {emitted / (batch * ROUNDS * STEPS):.3f} tokens/step", flush=True)


def clocked(function: Callable[[], None]) -> float:
    """Return the microseconds of a call."""
    began = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - began) / 1e3


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = ("1x8192", "32x8192", "256x8192", "1x32768")
    parser.add_argument("--cases", nargs="+", default=cases, help="batch x context of each case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in arguments.cases:
        timed(*map(int, case.split("x")))


if __name__ == "__main__":
    main()
