"""Views in poisoned memory; and random steps in an engine's stream, with all poisoned that no transfer may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random

import torch
from torch import Tensor

from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import StepBuffers, Transfers

POISON = 1 << 30
"""As an index it is out of range everywhere, and as a number it is no token and no count of a step."""

NEWEST = 50_000
"""The first of the ids that the window of newest tokens holds before `pack`."""

LIMIT = 300
"""Most tokens of a text."""


@dataclass
class Step:
    """Arguments of both transfers; without `states_all`, the engine takes ids only.

    The engine's tensors are views of `wide`.
    """

    buffers: StepBuffers
    batch_size: int
    draft_length: int
    rows: EngineRows
    wide: DraftOutputs
    states_all: bool

    def on(self, device: torch.device) -> Step:
        """Return a copy whose tensors are on a GPU, and whose buffers are in pinned memory."""
        held = {it.name: getattr(self.buffers, it.name) for it in fields(self.buffers)[:-1]}
        copies = {name: it.pin_memory() if isinstance(it, Tensor) else it for name, it in held.items()}
        rows, wide = (
            [it.to(device) if isinstance(it, Tensor) else it for it in each] for each in (self.rows, self.wide)
        )
        buffers = StepBuffers(**copies, pinned=True)
        return replace(self, buffers=buffers, rows=EngineRows(*rows), wide=DraftOutputs(*wide))

    def pack(self, transfers: Transfers) -> list[Tensor]:
        """Pack, and return all that may have been written."""
        transfers.pack(self.buffers, self.batch_size, self.rows)
        own = self.buffers
        return [own.lengths, own.emitted, own.verified, own.newest, own.engine_ids]

    def unpack(self, transfers: Transfers) -> list[Tensor]:
        """Unpack, and return all that may have been written."""
        most, (ids, confidence, lengths, parents, from_engine) = self.most, self.wide
        outputs = DraftOutputs(ids[:, :most])
        if self.states_all:
            links = None if self.buffers.parents is None else parents[:, :most]
            outputs = DraftOutputs(outputs.ids, confidence[:, :most], lengths[:, 0], links, from_engine[:, 0])
        transfers.unpack(self.buffers, self.batch_size, self.draft_length, outputs)
        return list(self.wide)

    @property
    def most(self) -> int:
        """K, the columns of the engine's tensors."""
        return self.wide.ids.shape[1] - 2

    def outcome(self, method: Callable[[Transfers], list[Tensor]], transfers: Transfers) -> list[list[object]]:
        """Return what a transfer writes into poisoned memory."""
        own = self.buffers
        for tensor in (own.lengths, own.emitted, own.verified, own.engine_ids, *self.wide):
            tensor.fill_(POISON)
        written = method(transfers)
        if self.wide.ids.is_cuda:
            torch.cuda.synchronize()
        return [tensor.tolist() for tensor in written]


def packed(step: Step) -> list[list[object]]:
    """Return what `pack` writes, by a loop over rows: the reference of all kernels."""
    (size, window), given = step.buffers.newest.shape, step.rows
    lengths, emitted, verified = ([POISON] * size for _ in range(3))
    newest: list[list[object]] = numbers(NEWEST, size, window).tolist()
    tokens = step.buffers.engine_ids.shape[1]
    engine_ids = torch.full((size, tokens), POISON).tolist()
    for row in range(step.batch_size):
        slot = int(given.idx_mapping[row])
        length = int(given.total_len[row if given.lengths_by_row else slot]) + given.lacking
        text = given.all_token_ids[slot, :length].tolist()
        tail = text[-step.buffers.packed :] if step.buffers.packed else []
        newest[row][window - len(tail) :] = tail
        lengths[row], emitted[row], verified[row] = len(text), int(given.num_sampled[row]), 0
        if given.engine_ids is not None:
            engine_ids[row] = given.engine_ids[row, :tokens].tolist()
        if emitted[row]:
            verified[row] = emitted[row] - 1 + int(given.num_rejected[row])
    return [lengths, emitted, verified, newest, engine_ids]


def unpacked(step: Step) -> list[list[object]]:
    """Return what `unpack` writes, by a loop over rows, with `newest` as it is now."""
    levels = step.buffers.confidence.tolist()
    out, confidence, lengths, parents, from_engine = (torch.full_like(it, POISON).tolist() for it in step.wide)
    for row in range(step.batch_size):
        draft, last = int(step.buffers.draft_rows[row]), int(step.buffers.newest[row, -1])
        length = 0 if draft < 0 else min(int(step.buffers.draft_lengths[draft]), step.draft_length, step.most)
        if step.states_all:
            lengths[row][0] = max(length, 0)
            from_engine[row][0] = 0 if draft < 0 else min(int(step.buffers.from_engine[draft]), lengths[row][0])
        for place in range(step.most):
            is_drafted = place < length
            out[row][place] = int(step.buffers.ids[draft, place]) if is_drafted else last
            if step.states_all:
                confidence[row][place] = levels[draft][place] if is_drafted else 0.0
            if step.states_all and step.buffers.parents is not None:
                parents[row][place] = int(step.buffers.parents[draft, place]) if is_drafted else place - 1
    return [out, confidence, lengths, parents, from_engine]


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
    window, tokens = random.choice([0, 1, 3, 8, 130]), random.choice([0, 1, 3])
    buffers = StepBuffers.allocate(most_rows, most, window, pinned=False, trees=trees, engine_tokens=tokens)
    buffers.from_engine.copy_(column(0, most, length=most_rows))
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

    total_len = torch.tensor(lengths[:size] + [POISON] * (places - size) if by_row else lengths, dtype=dtype())
    rows = EngineRows(
        view_of(random, torch.tensor([*order[:size], *[POISON] * (places - size)], dtype=dtype())),
        view_of(random, total_len),
        view_of(random, numbers(30_000, slots, LIMIT)),
        view_of(random, column(0, most + 1).to(dtype())),
        view_of(random, column(0, most).to(dtype())),
        lengths_by_row=by_row,
        lacking=random.randint(0, 1),
        engine_ids=view_of(random, numbers(70_000, places, tokens + 1, dtype=dtype())) if tokens else None,
    )
    wide = DraftOutputs(
        torch.empty(places, columns + 2, dtype=dtype()),
        torch.empty(places, columns + random.randint(0, 2)),
        torch.empty(places, random.randint(1, 3), dtype=torch.int32),
        torch.empty(places, columns + random.randint(0, 2), dtype=torch.int32),
        torch.empty(places, random.randint(1, 3), dtype=torch.int32),
    )
    return Step(buffers, size, draft_length, rows, wide, random.random() < 0.7)
