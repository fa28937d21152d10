"""Views in poisoned memory; and random steps in an engine's stream, with all poisoned that no transfer may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random

import torch
from torch import Tensor

from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows, StepBuffers, Transfers

POISON = 1 << 30
"""As an index it is out of range everywhere, and as a number it is no token and no count of a step."""

NEWEST = 50_000
"""The first of the ids that the window of newest tokens holds before `pack`."""

LIMIT = 300
"""Most tokens of a text."""


@dataclass
class Step:
    """Arguments of both transfers.

    `wide_out`, `wide_confidence` and `wide_lengths` are what the engine's tensors are views of; without `states_all`,
    the engine takes ids only.
    """

    buffers: StepBuffers
    batch_size: int
    draft_length: int
    idx_mapping: Tensor
    total_len: Tensor
    all_token_ids: Tensor
    num_sampled: Tensor
    num_rejected: Tensor
    lengths_by_row: bool
    lacking: int
    wide_out: Tensor
    wide_confidence: Tensor
    wide_lengths: Tensor
    out_parents: Tensor
    states_all: bool

    def on(self, device: torch.device) -> Step:
        """Return a copy whose tensors are on a GPU, and whose buffers are in pinned memory."""
        held = {it.name: getattr(self.buffers, it.name) for it in fields(self.buffers)[:-1]}
        copies = {name: it.pin_memory() if isinstance(it, Tensor) else it for name, it in held.items()}
        buffers, own = StepBuffers(**copies, pinned=True), {it.name: getattr(self, it.name) for it in fields(self)}
        tensors = {name: value.to(device) for name, value in own.items() if isinstance(value, Tensor)}
        return replace(self, **tensors, buffers=buffers)

    def pack(self, transfers: Transfers) -> list[Tensor]:
        """Pack, and return all that may have been written."""
        rows = EngineRows(
            *(self.idx_mapping, self.total_len, self.all_token_ids, self.num_sampled, self.num_rejected),
            lengths_by_row=self.lengths_by_row,
            lacking=self.lacking,
        )
        transfers.pack(self.buffers, self.batch_size, rows)
        self._wait()
        buffers = self.buffers
        return [it.clone() for it in (buffers.lengths, buffers.emitted, buffers.verified, buffers.newest)]

    def unpack(self, transfers: Transfers) -> list[Tensor]:
        """Unpack, and return all that may have been written."""
        most = self.wide_out.shape[1] - 2
        outputs = DraftOutputs(self.wide_out[:, :most])
        if self.states_all:
            parents = None if self.buffers.parents is None else self.out_parents[:, :most]
            outputs = DraftOutputs(outputs.ids, self.wide_confidence[:, :most], self.wide_lengths[:, 0], parents)
        transfers.unpack(self.buffers, self.batch_size, self.draft_length, outputs)
        self._wait()
        return [it.clone() for it in (self.wide_out, self.wide_confidence, self.wide_lengths, self.out_parents)]

    def _wait(self) -> None:
        if self.wide_out.is_cuda:
            torch.cuda.synchronize()

    def poison(self) -> None:
        """Poison everything that a transfer writes."""
        buffers = self.buffers
        for tensor in (buffers.lengths, buffers.emitted, buffers.verified, self.wide_out):
            tensor.fill_(POISON)
        for tensor in (self.wide_lengths, self.out_parents):
            tensor.fill_(POISON)
        self.wide_confidence.fill_(POISON)

    def outcome(self, method: Callable[[Transfers], list[Tensor]], transfers: Transfers) -> list[list[object]]:
        """Return what a transfer writes into poisoned memory."""
        self.poison()
        return [tensor.tolist() for tensor in method(transfers)]


def packed(step: Step) -> list[list[object]]:
    """Return what `pack` writes, by a loop over rows: the reference of all kernels."""
    rows, window = len(step.buffers.lengths), step.buffers.newest.shape[1]
    lengths, emitted, verified = ([POISON] * rows for _ in range(3))
    newest: list[list[object]] = numbers(NEWEST, rows, window).tolist()
    for row in range(step.batch_size):
        slot = int(step.idx_mapping[row])
        length = int(step.total_len[row if step.lengths_by_row else slot]) + step.lacking
        text = step.all_token_ids[slot, :length].tolist()
        tail = text[-step.buffers.packed :] if step.buffers.packed else []
        newest[row][window - len(tail) :] = tail
        lengths[row], emitted[row], verified[row] = len(text), int(step.num_sampled[row]), 0
        if emitted[row]:
            verified[row] = emitted[row] - 1 + int(step.num_rejected[row])
    return [lengths, emitted, verified, newest]


def unpacked(step: Step) -> list[list[object]]:
    """Return what `unpack` writes, by a loop over rows, with `newest` as it is now."""
    most, levels = step.wide_out.shape[1] - 2, step.buffers.confidence.tolist()
    out = [[POISON] * len(line) for line in step.wide_out]
    lengths, parents = ([[POISON] * len(line) for line in it] for it in (step.wide_lengths, step.out_parents))
    confidence = [[float(POISON)] * len(line) for line in step.wide_confidence]
    for row in range(step.batch_size):
        draft, last = int(step.buffers.draft_rows[row]), int(step.buffers.newest[row, -1])
        length = 0 if draft < 0 else min(int(step.buffers.draft_lengths[draft]), step.draft_length, most)
        if step.states_all:
            lengths[row][0] = max(length, 0)
        for place in range(most):
            is_drafted = place < length
            out[row][place] = int(step.buffers.ids[draft, place]) if is_drafted else last
            if step.states_all:
                confidence[row][place] = levels[draft][place] if is_drafted else 0.0
            if step.states_all and step.buffers.parents is not None:
                parents[row][place] = int(step.buffers.parents[draft, place]) if is_drafted else place - 1
    return [out, confidence, lengths, parents]


def numbers(start: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return a tensor in which no two entries are equal."""
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=dtype).view(shape)


def view_of(random: Random, tensor: Tensor) -> Tensor:
    """Return the contents of a tensor as a view of larger memory, which is poisoned: NaN for floats.

    The view begins anywhere, and its rows and the elements of vectors lie apart; the columns of a table do not.
    """
    strides = [1] * tensor.dim()
    for axis in range(tensor.dim() - 2, -1, -1):
        strides[axis] = strides[axis + 1] * tensor.shape[axis + 1] + random.randint(0, 3)
    if tensor.dim() == 1:
        strides = [random.randint(1, 3)]
    offset = random.randint(0, 3)
    size = offset + sum(stride * length for stride, length in zip(strides, tensor.shape, strict=True)) + 1
    poison = float("nan") if tensor.is_floating_point() else POISON
    memory = torch.full((size,), poison, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, strides, offset).copy_(tensor)


def random_step(random: Random) -> Step:
    """Return a step: rows in any order of slots, rows without drafts, and draft lengths that are out of range, too."""
    most_rows, most, slots = random.randint(1, 4), random.randint(1, 6), random.randint(4, 6)
    size, draft_length = random.randint(0, most_rows), random.randint(0, most)
    places = random.randint(size, most_rows)  # engines' per-row tensors may end with the batch

    def column(least: int, largest: int, length: int = places) -> Tensor:
        found = [random.randint(least, largest) for _ in range(size)]
        return torch.tensor(found + [POISON] * (length - size), dtype=torch.int32)

    trees, by_row = random.random() < 0.5, random.random() < 0.5
    buffers = StepBuffers.allocate(most_rows, most, random.choice([0, 1, 3, 8, 130]), pinned=False, trees=trees)
    buffers.draft_rows.copy_(column(-1, most_rows - 1, length=most_rows))
    buffers.ids.copy_(numbers(10_000, most_rows, most))
    buffers.confidence.copy_(numbers(1, most_rows, most) / 100)
    buffers.newest.copy_(numbers(NEWEST, *buffers.newest.shape))
    if buffers.parents is not None:
        buffers.parents.copy_(numbers(60_000, most_rows, most))
    for draft in range(most_rows):
        buffers.draft_lengths[draft] = length = random.randint(-2, most + 2)
        buffers.confidence[draft, max(length, 0) :] = float("nan")

    order, columns = list(range(slots)), random.randint(1, most)
    random.shuffle(order)
    lengths = [random.randint(0, random.choice([9, LIMIT - 1])) for _ in range(slots)]

    def dtype() -> torch.dtype:
        return random.choice([torch.int32, torch.int64])

    return Step(
        buffers,
        size,
        draft_length,
        view_of(random, torch.tensor([*order[:size], *[POISON] * (places - size)], dtype=dtype())),
        view_of(
            random, torch.tensor(lengths[:size] + [POISON] * (places - size) if by_row else lengths, dtype=dtype())
        ),
        view_of(random, numbers(30_000, slots, LIMIT)),
        view_of(random, column(0, most + 1).to(dtype())),
        view_of(random, column(0, most).to(dtype())),
        by_row,
        random.randint(0, 1),
        torch.empty(places, columns + 2, dtype=dtype()),
        torch.empty(places, columns + random.randint(0, 2)),
        torch.empty(places, random.randint(1, 3), dtype=torch.int32),
        torch.empty(places, columns + random.randint(0, 2), dtype=torch.int32),
        random.random() < 0.7,
    )
