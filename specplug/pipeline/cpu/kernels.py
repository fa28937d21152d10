"""Compiled bookkeeping around a proposer's step: `judge` runs before it, `sanitize` and `keep` after it.

Each gives the results of a few dozen small tensor operations of `specplug.pipeline`.  `memory` is a record of the
fields of `Columns`, a batch's rows in host memory, and of

    table: [S, 5 + M] int64, the slot table: generation, end, cap, grammar, verifier and M stop ids
    stopped: [S] int64, the generation of each slot that has stopped
    ingested: [S] int32, tokens of each slot that the proposer has
    ingested_by: [S] int64, the generation that these tokens belong to
    heads: [S, 3 + N] int64, the drafts that wait for their verdict; see `InFlight`
    row_counts, token_counts: [C + 2, 3] and [C + 1, N, 6] int64, the counters of `SpecMetrics`
    ids, confidence, sources, parents, draft_lengths, base_len: the draft buffer, [S, N] or [S]; `NO_PARENTS` for chains
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.match.cpu.compiled import compiled
from specplug.types.batch import EngineBatch
from specplug.types.draft import NO_TOKEN

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

NO_PARENTS = np.zeros((0, 0), np.int32)

GENERATION, CAP, _END, _GRAMMAR, _STOPS = 0, 2, 1, 3, 5
_HEAD = 3


class Columns(NamedTuple):
    """Facts of at most S rows, [S] each; a batch of B rows uses the first B entries.

    Attributes:
        slots, table_rows: int64, set by the engine: each row's slot, and its row of the token table.
        lengths, emitted, verified: int32, set by the engine: tokens so far, tokens that the step emitted, and draft
            tokens that it verified.
        cut_by_grammar: int32, set by the engine: tokens that a grammar removed from the verified draft.
        caps: int32, set by the engine: most draft tokens of each row.
        temperature: float32, set by the engine.
        generations, room, sampled, grammar: see `EngineBatch`; set by the step, like all that follow.
        num_new: int32, tokens that are new to the proposer.
        limits: int32, most draft tokens in this step.
    """

    slots: Int64s
    table_rows: Int64s
    lengths: Int32s
    emitted: Int32s
    verified: Int32s
    cut_by_grammar: Int32s
    caps: Int32s
    temperature: npt.NDArray[np.float32]
    generations: Int64s
    room: Int32s
    sampled: npt.NDArray[np.bool_]
    grammar: npt.NDArray[np.bool_]
    num_new: Int32s
    limits: Int32s

    @classmethod
    def allocate(cls, max_slots: int) -> Columns:
        """Return columns of zeros for batches of at most S rows."""
        dtypes = {"temperature": np.float32, "sampled": np.bool_, "grammar": np.bool_}
        dtypes |= dict.fromkeys(("slots", "table_rows", "generations"), np.int64)
        return cls(**{name: np.zeros(max_slots, dtypes.get(name, np.int32)) for name in cls._fields})

    def batch(self, batch_size: int, tokens: Tensor, vocab_size: int) -> EngineBatch:
        """Return a batch of B rows whose tensors share the columns' memory; `tokens` is the token table."""

        def column(name: str) -> Tensor:
            return torch.from_numpy(getattr(self, name)[:batch_size])

        return EngineBatch(
            slots=column("slots"),
            generations=column("generations"),
            rows=column("table_rows"),
            tokens=tokens,
            lengths=column("lengths"),
            sampled=column("sampled"),
            room=column("room"),
            temperature=column("temperature"),
            grammar=column("grammar"),
            vocab_size=vocab_size,
        )


@compiled
def describe_row(memory: Any, row: int, facts: Any) -> None:
    """Fill in the columns of one row that `EngineBatch` needs."""
    memory.generations[row], memory.room[row] = facts[GENERATION], facts[_END] - memory.lengths[row]
    memory.sampled[row], memory.grammar[row] = memory.emitted[row] > 0, facts[_GRAMMAR] != 0


@compiled
def empty(memory: Any, row: int, first: int, draft_length: int) -> None:
    """Empty a row of the draft buffer from its token `first` on."""
    for k in range(first, draft_length):
        memory.ids[row, k], memory.confidence[row, k], memory.sources[row, k] = NO_TOKEN, 0.0, -1
        if memory.parents.size:
            memory.parents[row, k] = k - 1


@compiled
def judge(memory: Any, tokens: Any, row: int, slot: int, facts: Any) -> None:
    """Join a row's outcome with its slot's draft and count both, like `Verdict.build` and `SpecMetrics.record`."""
    head, emitted = memory.heads[slot], memory.emitted[row]
    after = detect_stop(memory, tokens, row, slot, facts)
    drafted = 0
    if head[0] == facts[GENERATION] and head[1] == memory.lengths[row] - emitted:
        drafted = head[2]
    plain = memory.token_counts.shape[0] - 1
    counts = memory.row_counts[_counter(head[_HEAD], plain) if drafted > 0 else plain + (facts[CAP] == 0)]
    counts[0] += emitted > after
    counts[1] += emitted - after
    counts[2] += after
    proposed = 0 if emitted > 0 and after >= emitted else drafted
    left = proposed - min(memory.cut_by_grammar[row], proposed)
    verified = min(memory.verified[row] if emitted > 0 else 0, left)
    accepted = min(max(emitted - 1, 0), verified)
    if after > 0:  # the token that ends the request counts as the one that any step emits
        verified = accepted = min(accepted, max(emitted - after - 1, 0))
    tested = min(accepted + 1, verified)
    for k in range(drafted):
        stage = (k < proposed) + (k < left) + (k < verified) + (k < tested) + (k < accepted)
        memory.token_counts[_counter(head[_HEAD + k], plain), k, stage] += 1
    head[:] = -1


@compiled
def _counter(source: int, plain: int) -> int:
    """Return the index of a source's counters; unknown sources count as none."""
    return source if 0 <= source < plain else plain


@compiled
def detect_stop(memory: Any, tokens: Any, row: int, slot: int, facts: Any) -> int:
    """Return how many of a row's emitted tokens come after a stop; see `specplug.runtime.ends`."""
    length, emitted = memory.lengths[row], memory.emitted[row]
    text, generation, end = tokens[memory.table_rows[row]], facts[GENERATION], facts[_END]
    has_ended, after = memory.stopped[slot] == generation, 0
    for place in range(length - emitted, length):
        after += has_ended
        is_last = place + 1 >= end
        for k in range(_STOPS, facts.size):
            if facts[k] < 0:  # padding
                break
            is_last |= facts[k] == text[place]
        if is_last:
            has_ended = True
            memory.stopped[slot] = generation
    return after


@compiled
def malformed(memory: Any, batch_size: int, draft_length: int, vocab_size: int) -> int:
    """Return the first row whose draft has an impossible length, id or parent; -1 for none."""
    for row in range(batch_size):
        count = memory.draft_lengths[row]
        if count < 0 or count > draft_length:
            return row
        for k in range(count):
            if memory.ids[row, k] < 0 or memory.ids[row, k] >= vocab_size:
                return row
            if memory.parents.size and not -1 <= memory.parents[row, k] < k:
                return row
    return -1


@compiled
def sanitize(memory: Any, batch_size: int, draft_length: int, num_sources: int) -> None:
    """Make a draft buffer that is not `malformed` safe to verify, like `specplug.pipeline.buffers.sanitize`."""
    for row in range(batch_size):
        count = min(memory.draft_lengths[row], memory.limits[row])
        for k in range(count):
            confidence = memory.confidence[row, k]
            if not confidence >= 0.0:  # also NaN
                confidence = np.float32(0.0)
            memory.confidence[row, k] = min(confidence, np.float32(1.0))
            if memory.sources[row, k] < 0 or memory.sources[row, k] >= num_sources:
                memory.sources[row, k] = -1
        empty(memory, row, count, draft_length)
        memory.draft_lengths[row] = count


@compiled
def keep(memory: Any, batch_size: int) -> None:
    """Store the drafts until their verdict, like `InFlight.put`."""
    for row in range(batch_size):
        head, count = memory.heads[memory.slots[row]], memory.draft_lengths[row]
        head[0], head[1], head[2] = memory.generations[row], memory.base_len[row], count
        for k in range(count):
            head[_HEAD + k] = memory.sources[row, k]
