"""Tokens per step, confidences and time of `specplug.lookup` on a CPU, beside those of today's `ngram`.

    python -m benchmarks.lookup [--parts quality time] [--tokenizer FILE] [--cases 1x8192 32x8192 256x8192 1x32768]

`quality` replays the shipped traces in order with both, 15 tokens at a time, as `specplug replay --policy fixed
--gamma 15` does, as chains and as trees, and prints by workload the tokens per step, and of chains the AUC and the
Brier score of the confidences; means are geometric and plain.  `time` decodes texts of Python's library with both in
turns, step by step, after as many responses as the memory holds have finished; each row goes on by what its draft got
right and one token.  It prints the median microseconds of a step on one thread, and the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.texts import library_tokens, set_aside
from specplug.lookup import compiled
from specplug.lookup import layout as at
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from specplug.replay import load_tokenizer, read_traces, tokenize
from specplug.replay.calibration import Calibration, means
from specplug.replay.engine import Setup
from specplug.replay.items import TokenItem
from specplug.replay.run import replay
from specplug.types.draft import Draft

TRACES = Path(__file__).parents[1] / "specplug/replay/traces"
K = 15
VOCAB_SIZE = 1 << 20
OWNER = 1
WARM_UP = 8
ROUNDS = 9
STEPS = 20


class New:
    """`specplug.lookup` for B texts of at most L tokens; row and slot are the same.

    Attributes:
        texts: [B, L] int32; lengths: [B] int32; drafts: see `layout.Drafts`.
    """

    def __init__(self, texts: torch.Tensor, ring: int, *, trees: bool = False) -> None:
        batch, length = texts.shape
        self._state = at.allocate(batch, length, K, ring, trees=trees)
        self._texts = texts
        self._ids = torch.arange(batch)
        self._known, generations, self.lengths, firsts, self._new = torch.zeros(5, batch, dtype=torch.int32)
        self._rows = at.Rows(self._ids, generations, self.lengths, torch.full((batch,), K, dtype=torch.int32))
        self._source = at.views(at.Source(texts, self._ids, firsts, self._new))
        self.drafts = at.drafts_of(batch, K, trees=trees)
        self._step = at.views(self._state), torch.full_like(texts, -1).numpy(), at.views(self._rows)
        self._responses = 0
        self._steps = 0

    def begin(self) -> None:
        """Begin a request in each slot."""
        self._rows.generations.add_(1)
        owners = torch.full_like(self.lengths, OWNER)
        at.begin(self._state, self._ids, self._rows.generations, owners, torch.zeros_like(owners))
        self._known.zero_()

    def draft(self) -> None:
        """Step."""
        self._steps += 1
        if self._steps % at.HALVED_EVERY == 0:
            at.halve(self._state)
        torch.sub(self.lengths, self._known, out=self._new)
        compiled.ingest(*self._step, self._source)
        self._known.copy_(self.lengths)
        compiled.scan(*self._step)
        compiled.draft(*self._step, at.views(self.drafts), VOCAB_SIZE)

    def remember(self, text: torch.Tensor, prompt: int) -> None:
        """Remember what comes after a text's prompt."""
        self._state.slots[0, at.END] = len(text)
        compiled.remember(self._step[0], text[None].numpy(), 0, 0, prompt, len(text), OWNER, self._responses)
        self._responses += 1

    def accepted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of each draft, [B] int32, and how many of them the text goes on with."""
        lengths = self.drafts.lengths
        if not len(self.drafts.parents):
            return lengths, right(self.drafts.ids, lengths, self._texts, self.lengths)
        ids = self.drafts.ids.tolist()
        parents = self.drafts.parents.tolist()
        found = []
        for row, length in enumerate(self.lengths.tolist()):
            node = -1
            number = 0
            nodes = {(parents[row][k], ids[row][k]): k for k in range(int(lengths[row]))}
            for token in self._texts[row, length:].tolist():
                if (node, token) not in nodes:
                    break
                node = nodes[node, token]
                number = number + 1
            found.append(number)
        return lengths, torch.tensor(found, dtype=torch.int32)


class Today:
    """`ngram`, with the interface of `New`."""

    def __init__(self, texts: torch.Tensor, ring: int) -> None:
        batch, length = texts.shape
        self._lookup = Lookup(batch + 1, length, K, LookupSettings(memory_tokens=ring), trees=False)
        self._texts = texts
        self._slots = torch.arange(batch)
        self.lengths, self._known = torch.zeros(2, batch, dtype=torch.int32)
        self._limits = torch.full((batch,), K, dtype=torch.int32)
        self._draft = Draft.allocate(batch, K, trees=False, sources=("",) * 4)

    def begin(self) -> None:
        """Begin a request in each slot, whose prompt is all of its text but the last token."""
        for slot in range(len(self._slots)):
            self._lookup.start(slot, owner="")
            most = self._texts.shape[1]
            self._lookup.begin(slot, self._texts[slot, : self.lengths[slot] - 1].numpy(), most)
        self._known[:] = self.lengths - 1

    def draft(self) -> None:
        """Step."""
        lookup = self._lookup
        lookup.ingest(self._slots, self._texts, self._slots, self.lengths, self.lengths - self._known, None)
        lookup.propose(self._slots, self._limits, self._draft)
        self._known[:] = self.lengths

    def remember(self, text: torch.Tensor, prompt: int) -> None:
        """Remember what comes after a text's prompt."""
        slot = len(self._slots)
        self._lookup.start(slot, owner="")
        self._lookup.begin(slot, text.numpy(), len(text))
        self._lookup.remember(slot, "", prompt, len(text))

    def accepted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of each draft, [B] int32, and how many of them the text goes on with."""
        return self._draft.lengths, right(self._draft.token_ids, self._draft.lengths, self._texts, self.lengths)


def right(ids: torch.Tensor, counts: torch.Tensor, texts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return how many tokens at the beginning of each draft its text goes on with, [B] int32."""
    columns = torch.arange(K)
    places = lengths[:, None].long() + columns
    inside = (columns < counts[:, None]) & (places < texts.shape[1])
    is_right = inside & (texts.gather(1, places.clamp(max=texts.shape[1] - 1)) == ids[:, :K])
    return is_right.int().cumprod(1).sum(1).int()


def replayed(items: Sequence[TokenItem], *, trees: bool) -> tuple[float, Calibration]:
    """Return the tokens per step, and the outcomes of the decided tokens of chains, of the new lookup."""
    text = torch.full((1, max(len(it.prompt) + len(it.output) for it in items)), -1, dtype=torch.int32)
    lookup = New(text, 1 << 20, trees=trees)
    calibration = Calibration()
    steps = emitted = 0
    for it in items:
        end = len(it.prompt) + len(it.output)
        begin = len(it.prompt) + 1
        text[0, :end] = torch.from_numpy(np.concatenate((it.prompt, it.output)))
        text[0, end:] = -1
        lookup.lengths[0] = begin
        lookup.begin()
        decided: list[tuple[float, bool]] = []
        while lookup.lengths[0] < end:
            lookup.draft()
            right_ones = int(lookup.accepted()[1])
            new = min(right_ones + 1, end - int(lookup.lengths[0]))
            levels = lookup.drafts.confidence[0, : lookup.drafts.lengths[0]].tolist()[:new]
            decided += [] if trees else [(level, place < right_ones) for place, level in enumerate(levels)]
            lookup.lengths[0] += new
            steps += 1
        lookup.remember(text[0, :end], len(it.prompt))
        calibration.add(decided)
        emitted += end - begin
    return emitted / steps, calibration


def quality(tokenizer: str, *, trees: bool) -> None:
    """Print the tokens per step of both, and the confidences if they draft chains."""
    arms: dict[str, dict[str, tuple[float, Calibration]]] = {"ngram": {}, "lookup": {}}
    for name, items in read_traces(TRACES).items():
        tokens = tokenize(items, load_tokenizer(tokenizer))
        today = replay(tokens, Setup(proposer="ngram", policy="fixed", gamma=K, trees=trees))
        arms["ngram"][name] = today.counts.tau, today.calibration
        arms["lookup"][name] = replayed(tokens, trees=trees)
    form = "trees" if trees else "chains"
    for arm, found in arms.items():
        for name, (tau, calibration) in found.items():
            stated = "" if trees else f"  AUC {calibration.auc:.4f}  Brier {calibration.brier:.4f}"
            print(f"{form} {arm:8} {name:12} {tau:7.3f} tokens/step{stated}")
        mean = math.exp(statistics.fmean(math.log(tau) for tau, _ in found.values()))
        both = {} if trees else means([calibration for _, calibration in found.values()])
        stated = f"  AUC {both['auc']:.4f}  Brier {both['brier']:.4f}" if both else ""
        print(f"{form} {arm:8} {'mean':12} {mean:7.3f} tokens/step{stated}", flush=True)


def timed(batch: int, context: int) -> None:
    """Print the time of a step of both."""
    tokens, finished = set_aside(library_tokens(1_200_000 + 64 * batch + (1 << 22)))
    room = context + (WARM_UP + ROUNDS * STEPS) * (K + 1)
    starts = np.linspace(0, len(tokens) - room, batch).astype(np.int64)
    texts = torch.from_numpy(np.stack([tokens[start : start + room] for start in starts]))
    arms: dict[str, Any] = {"ngram": Today(texts, 1 << 20), "lookup": New(texts, 1 << 20)}
    for arm in arms.values():
        for response in finished:
            arm.remember(response, 3)
        arm.lengths[:] = context
        arm.begin()
    times: dict[str, list[float]] = {name: [] for name in arms}
    emitted = dict.fromkeys(arms, 0)
    for step in range(WARM_UP + ROUNDS * STEPS):
        for name in sorted(arms, reverse=step % 2 == 1):
            microseconds = clocked(arms[name].draft)
            new = arms[name].accepted()[1] + 1
            arms[name].lengths += new
            if step >= WARM_UP:
                times[name].append(microseconds)
                emitted[name] += int(new.sum())
    medians = {name: [statistics.median(it) for it in np.array_split(found, ROUNDS)] for name, found in times.items()}
    ratio = statistics.median(b / a for a, b in zip(medians["ngram"], medians["lookup"], strict=True))
    stated = "  ".join(
        f"{name} {statistics.median(times[name]):8.1f} us, {emitted[name] / (batch * len(times[name])):.3f} tokens/step"
        for name in arms
    )
    print(f"{batch:4} x {context:6}: {stated}  ratio {ratio:.2f}", flush=True)


def clocked(function: Callable[[], None]) -> float:
    """Return the microseconds of a call."""
    began = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - began) / 1e3


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("quality", "time"), default=("quality", "time"))
    tokenizer = Path("~/.cache/specplug/models/smollm2/tokenizer.json").expanduser()
    parser.add_argument(
        "--tokenizer", default=str(tokenizer), help="of the replay; by default SmolLM2's, if it is there"
    )
    cases = ("1x8192", "32x8192", "256x8192", "1x32768")
    parser.add_argument("--cases", nargs="+", default=cases, help="batch x context of each timed case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "quality" in arguments.parts:
        quality(arguments.tokenizer, trees=False)
        quality(arguments.tokenizer, trees=True)
    for case in arguments.cases if "time" in arguments.parts else ():
        timed(*map(int, case.split("x")))


if __name__ == "__main__":
    main()
