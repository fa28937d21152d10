"""Drafts from corpora by `specplug.lookup` on a CPU, beside those of today's `retrieval`: tokens per step, and time.

    python -m benchmarks.lookup_corpora [--parts quality time] [--tokens 2000000] [--tokenizer FILE] [--texts 40]

The corpus consists of the sources and documentation of the installed Python packages (`benchmarks.corpus_text`).
`quality` decodes, one after the other and 15 tokens at a time, parts of documents of the corpus in which a token in 25
was replaced, dropped or put in ("edited"), and of files that are not in it ("others"); it prints the tokens per step of
both with the corpus, and of the new lookup without it.  No response is remembered.  `time` prints the median
microseconds of a search of 1 and 64 contexts that end anywhere in the corpus and in other files, of both in turns, and
the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch

from benchmarks.corpus_arms import KEY, Contexts, Ours, contexts, searched
from benchmarks.corpus_text import Texts, installed, read
from benchmarks.lookup import VOCAB_SIZE, K, clocked, right
from specplug.corpus.segment import LiveSegment
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.lookup import compiled, corpora
from specplug.lookup import layout as at
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from specplug.types.draft import Draft

PROMPT = 64
OUTPUT = 448
LENGTH = PROMPT + OUTPUT
ROUNDS = 9
WARM_UP = 5
STEPS = WARM_UP + 40 * ROUNDS
BATCHES = (1, 64)


class New:
    """`specplug.lookup` with corpora, for texts of at most L tokens in B slots."""

    def __init__(self, live: Sequence[LiveSegment], slots: int, length: int) -> None:
        self.numbers = corpora.Numbers()
        loaded = corpora.loaded({"": [_segment(it) for it in live]}, self.numbers, slots)
        self.state = corpora.use(at.allocate(slots, length, K, 0), loaded)
        self.views = at.views(self.state)
        self.ids = torch.arange(slots)
        generations, lengths, self.firsts, self.new = torch.zeros(4, slots, dtype=torch.int32)
        self.rows = at.Rows(self.ids, generations, lengths, torch.full((slots,), K, dtype=torch.int32))
        self.texts = torch.full((slots, length), -1, dtype=torch.int32)
        self.step = self.views, self.texts.numpy(), at.views(self.rows)
        self.drafts = at.drafts_of(slots, K)
        self.steps = 0

    def begin(self, *, served: bool) -> None:
        """Begin a request in each slot, which draws on the corpora if it is `served`."""
        self.rows.generations.add_(1)
        none = torch.zeros_like(self.rows.generations)
        at.begin(self.state, self.ids, self.rows.generations, none, none)
        corpora.assign(self.state, self.ids, [self.numbers.known("" if served else None, [])] * len(self.ids))

    def ingest(self, table: torch.Tensor) -> None:
        """Ingest the new tokens of a table, [B, L] int32."""
        torch.sub(self.rows.lengths, self.state.slots[:, at.END], out=self.new)
        compiled.ingest(*self.step, at.views(at.Source(table, self.ids, self.firsts, self.new)))

    def draft(self, table: torch.Tensor) -> None:
        """Step."""
        self.steps += 1
        if self.steps % at.HALVED_EVERY == 0:
            at.halve(self.state)
        self.ingest(table)
        compiled.scan(*self.step)
        compiled.search(*self.step)
        compiled.draft(*self.step, at.views(self.drafts), VOCAB_SIZE)

    def decode(self, text: torch.Tensor, *, served: bool) -> int:
        """Return the steps that a text, [1, L], takes."""
        self.rows.lengths[0] = PROMPT + 1
        self.begin(served=served)
        steps = 0
        while (n := int(self.rows.lengths[0])) < LENGTH:
            self.draft(text)
            new = int(right(self.drafts.ids, self.drafts.lengths, text, self.rows.lengths)[0]) + 1
            self.rows.lengths[0] = min(n + new, LENGTH)
            steps += 1
        return steps


class Today:
    """`retrieval` for texts in one slot."""

    def __init__(self, live: Sequence[LiveSegment]) -> None:
        self.lookup = Lookup(1, LENGTH, K, LookupSettings(memory_tokens=0), trees=False)
        self.lookup.load({"": [searched(it) for it in live]})
        self.limits = torch.full((1,), K, dtype=torch.int32)
        self.out = Draft.allocate(1, K, trees=False, sources=("",) * 4)

    def decode(self, text: torch.Tensor) -> int:
        """Return the steps that a text, [1, L], takes."""
        self.lookup.start(0, tenant="")
        self.lookup.begin(0, text[0, :PROMPT].numpy(), LENGTH)
        slots = torch.zeros(1, dtype=torch.int64)
        known = torch.full((1,), PROMPT, dtype=torch.int32)
        lengths = known + 1
        steps = 0
        while int(lengths[0]) < LENGTH:
            self.lookup.ingest(slots, text, slots, lengths, lengths - known, None)
            self.lookup.propose(slots, self.limits, self.out)
            known = lengths.clone()
            lengths = (lengths + right(self.out.token_ids, self.out.lengths, text, lengths) + 1).clamp(max=LENGTH)
            steps += 1
        return steps


def _segment(live: LiveSegment) -> corpora.Segment:
    it = live.segment
    return corpora.Segment(it.text, it.places, it.starts, it.corpus_of, it.corpora, live.dead)


def edited(texts: Texts, count: int) -> list[torch.Tensor]:
    """Return parts of documents of the corpus, with edits."""
    random = Random(7)
    found = list[torch.Tensor]()
    while len(found) < count:
        ids = random.choice(texts.documents).token_ids
        if len(ids) >= 2 * LENGTH:
            first = random.randrange(len(ids) - 2 * LENGTH + 1)
            text = list[int]()
            for token in ids[first : first + 2 * LENGTH].tolist():
                edit = random.randrange(75)
                text += {0: [int(random.choice(ids))], 1: [], 2: [token, int(random.choice(ids))]}.get(edit, [token])
            found.append(torch.tensor([text[:LENGTH]], dtype=torch.int32))
    return found


def others(texts: Texts, count: int) -> list[torch.Tensor]:
    """Return parts of files that are not in the corpus."""
    random = Random(8)
    starts = [random.randrange(len(texts.external) - LENGTH) for _ in range(count)]
    return [torch.tensor(texts.external[None, start : start + LENGTH].astype(np.int32)) for start in starts]


def quality(texts: Texts, live: Sequence[LiveSegment], count: int) -> None:
    """Print the tokens per step."""
    for name, these in (("edited", edited(texts, count)), ("others", others(texts, count))):
        new = New(live, 1, LENGTH)
        without = New(live, 1, LENGTH)
        today = Today(live)
        arms: dict[str, Callable[[torch.Tensor], int]] = {
            "retrieval": today.decode,
            "lookup": lambda text, arm=new: arm.decode(text, served=True),  # type: ignore[misc]
            "without": lambda text, arm=without: arm.decode(text, served=False),  # type: ignore[misc]
        }
        emitted = count * (OUTPUT - 1)
        taus = {arm: emitted / sum(map(decode, these)) for arm, decode in arms.items()}
        stated = "  ".join(f"{arm} {tau:.3f}" for arm, tau in taus.items())
        print(f"{name:8} {stated}  ratio {taus['lookup'] / taus['retrieval']:.4f}", flush=True)


def timed(kind: str, requested: Contexts, live: Sequence[LiveSegment]) -> None:
    """Print the time of searches."""
    ours = Ours([searched(it) for it in live])
    for batch in BATCHES:
        new = New(live, batch, KEY)
        new.rows.lengths.fill_(KEY)
        new.begin(served=True)
        new.ingest(torch.zeros(batch, KEY, dtype=torch.int32))
        times: dict[str, list[float]] = {"retrieval": [], "lookup": []}
        for number in range(STEPS):
            # Each has its own contexts: the first to search would bring what it reads into the cache for the other.
            ours.place(ours.prepare(requested, slice(number * batch, (number + 1) * batch)))
            new.texts[:] = torch.from_numpy(
                ours.prepare(requested, slice((STEPS + number) * batch, (STEPS + number + 1) * batch))
            )
            times["retrieval"].append(clocked(ours.ask))
            times["lookup"].append(clocked(partial(compiled.search, *new.step)))
        medians = {
            name: [statistics.median(it) for it in np.array_split(found[WARM_UP:], ROUNDS)]
            for name, found in times.items()
        }
        ratio = statistics.median(b / a for a, b in zip(medians["retrieval"], medians["lookup"], strict=True))
        stated = "  ".join(f"{name} {statistics.median(found[WARM_UP:]):8.1f} us" for name, found in times.items())
        print(f"{kind:12} {batch:4} contexts: {stated}  ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("quality", "time"), default=("quality", "time"))
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of the corpus, at least (default: 2000000)")
    tokenizer = Path("~/.cache/specplug/models/smollm2/tokenizer.json").expanduser()
    parser.add_argument("--tokenizer", default=str(tokenizer), help="by default SmolLM2's, if it is there")
    parser.add_argument("--texts", type=int, default=40, help="texts of each kind to decode (default: 40)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        texts = read(options.tokens, options.tokenizer, installed())
        Store.create(Path(folder) / "store", texts.tokenizer).add("all", texts.documents)
        live = View(Path(folder) / "store", None).snapshot.tenants[""]
        print(f"{texts.tokens} tokens, {len(live)} segments")
        if "quality" in options.parts:
            quality(texts, live, options.texts)
        if "time" in options.parts:
            count = 2 * STEPS * max(BATCHES)
            timed("the corpus", contexts(live[0].segment.text.copy(), count, 1), live)
            timed("other files", contexts(texts.external, count, 2), live)


if __name__ == "__main__":
    main()
