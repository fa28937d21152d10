"""Arms of `benchmarks.match_cost`: each gets the same texts and is fed as by its engine.

Each arm has its own token table, in which tokens that the target has not emitted yet are poisoned.  Lengths, tensors
and lists that an engine has anyway are prepared in `ready`, which is not timed; `insert` and `step` are timed.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from specplug.interfaces import PluginContext
from specplug.match.options import LookupSettings
from specplug.types.batch import BatchView
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.request import Lifecycle, Request, RequestEvent

Ids = npt.NDArray[np.int32]

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table, an id of no vocabulary."""

DEPTH = 24
"""vLLM's default for the depth of Arctic's trees; its other settings are vLLM's defaults, too."""

VLLM_N = 5
"""Shortest and longest n-gram of vLLM's own proposer, by default."""

CHECKED_ROWS = 4


@dataclass(frozen=True)
class Case:
    """Texts to decode.

    Attributes:
        texts: B arrays [context + slack] int32, each row's prompt followed by the target's output.
        earlier: responses, each [n] int32, of requests that finished earlier.
        draft_length: gamma, most draft tokens of a row.
    """

    texts: Sequence[Ids]
    earlier: Sequence[Ids]
    context: int
    draft_length: int

    @property
    def batch(self) -> int:
        """B."""
        return len(self.texts)


class Arm(abc.ABC):
    """One proposer and its engine's token table.

    Attributes:
        table: [B, L] int32.
        lengths: [B] int32.
    """

    name: str

    def __init__(self, case: Case) -> None:
        self.case = case
        self.table = np.full((case.batch, len(case.texts[0])), POISON, np.int32)
        self.lengths = np.full(case.batch, case.context, np.int32)
        for row, text in enumerate(case.texts):
            self.table[row, : case.context] = text[: case.context]

    @abc.abstractmethod
    def insert(self, row: int) -> None:
        """Insert a row's prompt."""

    def emit(self, drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Append to each row its correctly drafted tokens and one more."""
        emitted = []
        for row, (draft, text) in enumerate(zip(drafts, self.case.texts, strict=True)):
            at, right = int(self.lengths[row]), 0
            while right < len(draft) and draft[right] == text[at + right]:
                right += 1
            emitted.append(text[at : at + right + 1].tolist())
            self.table[row, at : at + right + 1] = emitted[row]
            self.lengths[row] = at + right + 1
        return emitted

    def ready(self, emitted: list[list[int]]) -> None:
        """Prepare the data that an engine has anyway when it requests drafts."""
        self.emitted = emitted

    @abc.abstractmethod
    def step(self) -> None:
        """Ingest the emitted tokens, and draft."""

    @abc.abstractmethod
    def drafts(self) -> list[list[int]]:
        """Return the drafts as lists."""

    def wrong(self) -> str | None:
        """Check the last drafts against a simpler computation; return the first problem, or None."""
        return None

    def bytes_per_token(self) -> float | None:
        """Return the memory per token of a running text as the arm reports it, or None if it keeps no text."""
        return None

    def bytes_per_remembered_token(self) -> float | None:
        """Return the memory per token of a finished response, or None if none is kept or it is not reported."""
        return None


class Ours(Arm):
    """The proposer `ngram`, called as the pipeline calls it, on some number of threads."""

    name, threads = "specplug", 1

    def __init__(self, case: Case) -> None:
        from specplug.match.proposer import LookupProposer

        super().__init__(case)
        batch = case.batch
        context = PluginContext(
            EngineCaps(max_draft_length=case.draft_length),
            options=LookupSettings(threads=self.threads),
            max_slots=batch + 1,
            max_length=self.table.shape[1],
        )
        self.proposer = LookupProposer(context)
        self.proposer.warmup()
        self._rows, self._tokens = torch.arange(batch), torch.from_numpy(self.table)
        self._same = {
            "temperature": torch.zeros(batch),
            "sampled": torch.ones(batch, dtype=torch.bool),
            "grammar": torch.zeros(batch, dtype=torch.bool),
            "room": torch.full((batch,), 1 << 20, dtype=torch.int32),
            "generations": torch.ones(batch, dtype=torch.int64),
        }
        self.draft = Draft.allocate(batch, case.draft_length)
        for number, response in enumerate(case.earlier):
            self._remember(number, response)

    def _remember(self, number: int, response: Ids) -> None:
        slot, request = self.case.batch, Request(f"earlier-{number}", 1, 1 << 20, isolation_key="one")
        self.proposer.on_event(RequestEvent(Lifecycle.STARTED, request, slot, number))
        self.proposer.ingest(self._whole(slot, torch.from_numpy(response[None]), response.size))
        finished = RequestEvent(Lifecycle.FINISHED, request, slot, number, visible=response.size)
        self.proposer.on_event(finished)

    def _whole(self, slot: int, tokens: torch.Tensor, length: int) -> BatchView:
        """Return a batch of one row, whose text is all new, and row 0 of `tokens`."""
        all_of_it = torch.tensor([length], dtype=torch.int32)
        same = {name: column[:1] for name, column in self._same.items()}
        return BatchView(
            slots=torch.tensor([slot]), rows=torch.zeros(1, dtype=torch.int64), tokens=tokens, lengths=all_of_it,
            num_new=all_of_it, vocab_size=1 << 18, **same,
        )  # fmt: skip

    def insert(self, row: int) -> None:
        request = Request(str(row), self.case.context, 1 << 20, isolation_key="one")
        self.proposer.on_event(RequestEvent(Lifecycle.STARTED, request, row, 1))
        self.proposer.ingest(self._whole(row, self._tokens[row : row + 1], self.case.context))

    def ready(self, emitted: list[list[int]]) -> None:
        super().ready(emitted)
        lengths = torch.from_numpy(self.lengths.copy())
        num_new = torch.tensor([len(one) for one in emitted], dtype=torch.int32)
        self.batch = BatchView(
            slots=self._rows, rows=self._rows, tokens=self._tokens, lengths=lengths, num_new=num_new,
            vocab_size=1 << 18, **self._same,
        )  # fmt: skip
        self.limits = torch.full((self.case.batch,), self.case.draft_length, dtype=torch.int32)
        self.draft.reset(lengths)

    def step(self) -> None:
        self.ingest()
        self.propose()

    def ingest(self) -> None:
        """Learn from the emitted tokens, and ingest them."""
        self.proposer.ingest(self.batch)

    def propose(self) -> None:
        """Draft."""
        self.proposer.propose(self.batch, self.limits, self.draft)

    def drafts(self) -> list[list[int]]:
        counts, ids = self.draft.lengths.tolist(), self.draft.token_ids.tolist()
        return [row[:count] for row, count in zip(ids, counts, strict=True)]

    def wrong(self) -> str | None:
        """Draft again row by row, which must give the same drafts, and check that finished responses are remembered."""
        if self.proposer.lookup.responses.num_tokens < sum(response.size - 1 for response in self.case.earlier):
            return "finished responses are not remembered"
        together = self.drafts()
        for row in sample(self.case.batch):
            alone = Draft.allocate(1, self.case.draft_length)
            alone.reset(self.batch.lengths[row : row + 1])
            self.proposer.propose(self.batch.permute([row]), self.limits[row : row + 1], alone)
            count = int(alone.lengths[0])
            if alone.token_ids[0, :count].tolist() != together[row]:
                return f"row {row} of {self.case.batch} drafts otherwise when it is alone"
        return None

    def bytes_per_token(self) -> float | None:
        texts = self.proposer.lookup.texts
        return sum(map(texts.num_bytes, range(self.case.batch))) / int(texts.lengths[: self.case.batch].sum())

    def bytes_per_remembered_token(self) -> float | None:
        memory = self.proposer.lookup.responses
        return float(_bytes_of(memory.record)) / memory.capacity


@numba.njit  # type: ignore[untyped-decorator]
def _bytes_of(memory: Any) -> int:
    """Kernels alone see what is in such a record."""
    return int(memory.text.nbytes + memory.children.nbytes + memory.heads.nbytes + memory.owners.nbytes)


class Arctic(Arm):
    """Arctic Inference's suffix cache, called as vLLM's `SuffixDecodingProposer` calls it."""

    name = "Arctic"

    def __init__(self, case: Case) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        super().__init__(case)
        self.cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=10000)
        for number, response in enumerate(case.earlier):
            self.cache.start_request(f"earlier-{number}", response[:1])
            self.cache.add_active_response(f"earlier-{number}", response[1:])
            self.cache.stop_request(f"earlier-{number}")
        self._names = [str(row) for row in range(case.batch)]

    def insert(self, row: int) -> None:
        self.cache.start_request(str(row), self.table[row, : self.case.context])

    def step(self) -> None:
        cache, table, lengths, draft_length = self.cache, self.table, self.lengths, self.case.draft_length
        found = []
        for row, (name, new) in enumerate(zip(self._names, self.emitted, strict=True)):
            cache.add_active_response(name, new)
            length = lengths[row]
            context = table[row, max(0, length - DEPTH) : length]
            draft = cache.speculate(
                name, context, max_spec_tokens=draft_length, max_spec_factor=1.0, min_token_prob=0.1
            )
            found.append(draft.token_ids)
        self._found = found

    def drafts(self) -> list[list[int]]:
        return self._found

    def bytes_per_token(self) -> float | None:
        return sum(tree.estimate_memory() for tree in self.cache._local_trees.values()) / int(self.lengths.sum())


class Vllm(Arm):
    """vLLM's own n-gram proposer.  It keeps nothing and scans the engine's token table, so nothing is inserted."""

    name = "vLLM ngram"

    def __init__(self, case: Case) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        super().__init__(case)
        how: Any = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=VLLM_N, prompt_lookup_max=VLLM_N, num_speculative_tokens=case.draft_length
            ),
            model_config=SimpleNamespace(max_model_len=self.table.shape[1]),
            scheduler_config=SimpleNamespace(max_num_seqs=case.batch),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        self.proposer: Any = NgramProposer(how)

    def insert(self, row: int) -> None:
        pass

    def step(self) -> None:
        self._found = self.proposer.propose(self.case.draft_length, self.emitted, self.lengths, self.table)

    def drafts(self) -> list[list[int]]:
        return list(self._found)

    def wrong(self) -> str | None:
        """Check the drafts against the first earlier occurrence of the newest `VLLM_N` tokens."""
        for row in sample(self.case.batch):
            text = self.table[row, : self.lengths[row]]
            if self._found[row] != first_match(text, VLLM_N, self.case.draft_length):
                return f"row {row} of {self.case.batch} is not what its rule says"
        return None


def first_match(text: Ids, n: int, draft_length: int) -> list[int]:
    """Return at most `draft_length` tokens after the first occurrence of the last `n` tokens of `text`."""
    places = np.ones(len(text) - n, bool)
    for k in range(n):
        places &= text[k : len(text) - n + k] == text[len(text) - n + k]
    found: list[int] = []
    if places.any():
        begin = int(places.argmax()) + n
        found = text[begin : begin + draft_length].tolist()
    return found


def sample(batch: int) -> list[int]:
    """Return some rows of a batch: the first, the last, and some between."""
    return sorted({int(row) for row in np.linspace(0, batch - 1, CHECKED_ROWS)})


ARMS: dict[str, type[Arm]] = {arm.name: arm for arm in (Ours, Arctic, Vllm)}
