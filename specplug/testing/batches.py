"""Batches from plain lists, drafted steps, and random verification steps, whose undefined entries are poisoned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from specplug.interfaces import Verifier
from specplug.types.caps import Distribution
from specplug.types.request import Request
from specplug.types.step import Draft, EngineBatch
from specplug.types.tensors import map_tensors
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.random import uniforms
from specplug.verify.target import target_probs

T = TypeVar("T")

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table: an int32 that is an id of no vocabulary."""

PLENTY = 1 << 20
"""A remaining length that never limits a draft."""


_COLUMNS: Mapping[str, tuple[torch.dtype, float]] = {
    "generations": (torch.int64, 0),
    "sampled": (torch.bool, True),
    "room": (torch.int32, PLENTY),
    "temperature": (torch.float32, 0.0),
    "grammar": (torch.bool, False),
}
"""What `make_batch` takes for each row, and by default for all: first generations, decoded greedily, with room."""


def make_batch(
    texts: Sequence[Sequence[int]],
    *,
    num_new: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    table_shape: tuple[int, int] | None = None,
    requests: Sequence[Request] | None = None,
    poison: int = POISON,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
    vocab_size: int = 64,
    **fields: Any,
) -> EngineBatch:
    """Return the batch of B rows whose row i holds `texts[i]`.

    Args:
        num_new: by default all tokens are new.
        slots: by default row i is slot i.
        rows: the row of the token table that holds each text; by default the slot.
        table_shape: [S, L] of the token table; by default the smallest that fits, plus one poisoned column.
        poison: fill value of the token table outside the texts.
        index_dtype: int32 or int64, the dtype of `slots` and `rows`, which differs between engines.
        fields: columns of `_COLUMNS`, one value per row, and further fields of `EngineBatch`.
    """
    count = len(texts)
    slots = range(count) if slots is None else slots
    rows = slots if rows is None else rows
    lengths = [len(text) for text in texts]
    if table_shape is None:
        table_shape = (max(rows, default=0) + 1, max(lengths, default=0) + 1)
    table = torch.full(table_shape, poison, dtype=torch.int32)
    for row, text in zip(rows, texts, strict=True):
        table[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
    for name, (dtype, default) in _COLUMNS.items():
        fields[name] = torch.tensor(fields.get(name, [default] * count), dtype=dtype, device=device)
    batch = EngineBatch(
        slots=torch.tensor(slots, dtype=index_dtype, device=device),
        rows=torch.tensor(rows, dtype=index_dtype, device=device),
        tokens=table.to(device),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        num_new=torch.tensor(lengths if num_new is None else num_new, dtype=torch.int32, device=device),
        vocab_size=vocab_size,
        request_ids=None if requests is None else tuple(request.request_id for request in requests),
        requests=None if requests is None else tuple(requests),
        **fields,
    )
    batch.validate()
    return batch


class RowDraft(NamedTuple):
    """One row's draft as plain Python; `parents` is None for chains."""

    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    source: tuple[int, ...]
    parents: tuple[int, ...] | None


@dataclass(frozen=True)
class DraftedStep:
    """Input and output of a proposer at one step."""

    names: tuple[str, ...]
    batch: EngineBatch
    limits: Tensor
    draft: Draft

    def by_request(self) -> dict[str, RowDraft]:
        """Return each request's draft, by name."""
        draft = self.draft
        columns = (draft.token_ids, draft.confidence, draft.source, draft.parents)
        return {
            name: RowDraft(*(None if it is None else tuple(it[row, :count].tolist()) for it in columns))  # type: ignore[arg-type]
            for row, (name, count) in enumerate(zip(self.names, draft.lengths.tolist(), strict=True))
        }


@dataclass(frozen=True, eq=False)
class VerifyStep:
    """The arguments of one verification of B rows with drafts of at most N tokens, on the CPU.

    `dense` [B, N + 1, V] float32 are the target's logits; only the first n_i + 1 positions of a row are its own.
    """

    draft: Draft
    dense: Tensor
    sampling: SamplingBatch
    uniforms: Uniforms

    @classmethod
    def random(
        cls, seed: int, distribution: Distribution, *, vocab_size: int, batch_size: int, draft_length: int
    ) -> VerifyStep:
        """Draw a step whose rows differ in length and in sampling parameters."""
        stream = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=stream) * 2

        def choose(*values: float) -> Tensor:
            return torch.tensor(values)[torch.randint(len(values), (batch_size,), generator=stream)]

        draft = Draft.allocate(batch_size, draft_length, distribution=distribution, vocab_size=vocab_size)
        for row, length in enumerate(torch.randint(draft_length + 1, (batch_size,), generator=stream).tolist()):
            draft.set_row(row, torch.randint(vocab_size, (length,), generator=stream).tolist(), 0.5)
        if draft.draft_logits is not None:
            draft.draft_logits.copy_(normal(batch_size, draft_length, vocab_size))
        if draft.draft_probs is not None:
            draft.draft_probs.copy_(normal(batch_size, draft_length, vocab_size).softmax(-1))
        if draft.drawn is not None:
            draft.drawn.copy_(torch.rand(batch_size, draft_length, generator=stream) < 0.7)
        sampling = SamplingBatch(choose(0.0, 0.5, 1.0), choose(0, 2, 4).long(), choose(0.6, 1.0), choose(0.0, 0.2))
        positions = torch.randint(99, (batch_size,), generator=stream)
        numbers = uniforms(torch.arange(batch_size), positions, draft_length)
        return cls(draft, normal(batch_size, draft_length + 1, vocab_size), sampling, numbers)

    def arguments(self, *, flat: bool = False, device: str = "cpu") -> tuple[Any, ...]:
        """Return the arguments of `Verifier.verify` on `device`, with logits that are padded or flat."""
        rows = [self.dense[row, : length + 1] for row, length in enumerate(self.draft.lengths.tolist())]
        target = TargetLogits.flat(torch.cat(rows), self.draft.lengths) if flat else TargetLogits.dense(self.dense)
        return tuple(move_to(it, device) for it in (self.draft, target, self.sampling, self.uniforms))

    def verify(self, verifier: Verifier, *, flat: bool = False, device: str = "cpu") -> Verification:
        """Verify the step on `device`."""
        return verifier.verify(*self.arguments(flat=flat, device=device))

    def pick(self, rows: list[int], draft_length: int | None = None) -> VerifyStep:
        """Return the step of some rows, in their order, cut to `draft_length` draft tokens."""
        index = torch.tensor(rows, dtype=torch.int64)
        longest = self.draft.draft_length if draft_length is None else draft_length
        draft = map_tensors(self.draft, lambda tensor: tensor[index]).view(len(rows), longest)
        sampling = map_tensors(self.sampling, lambda tensor: tensor[index])
        numbers = Uniforms(self.uniforms.accept[index, :longest], self.uniforms.draw[index, : longest + 1])
        return VerifyStep(draft, self.dense[index, : longest + 1], sampling, numbers)

    def with_poison(self, poison: int) -> VerifyStep:
        """Return the step with `poison` and NaN wherever the memory of a row is undefined."""
        step = self.pick(list(range(self.draft.batch_size)))
        outside = ~step.draft.mask()
        after = torch.arange(step.draft.draft_length + 1) > step.draft.lengths[:, None]
        step.draft.token_ids[outside] = poison
        for tensor in (step.draft.confidence, step.draft.draft_logits, step.draft.draft_probs, step.uniforms.accept):
            if tensor is not None:
                tensor[outside] = torch.nan
        if step.draft.drawn is not None:
            step.draft.drawn[outside] ^= True
        step.dense[after] = torch.nan
        step.uniforms.draw[after] = torch.nan
        return step

    def with_other_numbers(self, num_accepted: Tensor) -> VerifyStep:
        """Return the step with 0 for the random numbers of the positions after `num_accepted` [B] draft tokens."""
        step = self.pick(list(range(self.draft.batch_size)))
        places = torch.arange(step.draft.draft_length + 1)
        accepted = num_accepted[:, None]
        step.uniforms.accept[places[:-1] > accepted] = 0.0
        step.uniforms.draw[places > accepted] = 0.0
        return step

    def as_greedy(self, *, all_greedy: bool) -> VerifyStep:
        """Return the step with temperature 0 in every row; `all_greedy` says whether the host knows this."""
        cold = torch.zeros_like(self.sampling.temperature)
        return replace(self, sampling=replace(self.sampling, temperature=cold, all_greedy=all_greedy))

    def drawn_from_the_target(self) -> VerifyStep:
        """Return the step with drafts that state the target's own distribution at temperature 1."""
        plain = SamplingBatch(torch.ones(self.draft.batch_size))
        logits = self.dense[:, : self.draft.draft_length]
        draft = replace(
            self.draft,
            draft_logits=None if self.draft.draft_logits is None else logits,
            draft_probs=None if self.draft.draft_probs is None else target_probs(logits, plain.temperature),
            drawn=None if self.draft.drawn is None else torch.ones_like(self.draft.drawn),
        )
        return replace(self, draft=draft, sampling=plain)


def move_to(record: T, device: str) -> T:
    """Return a dataclass with its tensors on `device`."""
    return map_tensors(record, lambda tensor: tensor.to(device))
