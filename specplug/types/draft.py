"""Draft: the tokens that proposers draft for one step.  The adapter owns the buffer; proposers write into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.types.caps import Distribution
from specplug.types.paths import ROOT, along_paths, best_path, compacted, gather_nodes
from specplug.types.tensors import ANY, check_tensor

NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Drafts of B requests, each with its own length of at most N tokens.  All tensors are on one device.

    Attributes:
        token_ids: [B, N] int32, `NO_TOKEN` beyond the row's length.
        lengths: [B] int32, draft tokens (tree: nodes) per row, possibly 0.
        confidence: [B, N] float32, the probability that the target accepts the token given that it accepted the
            tokens before it (tree: its ancestors).
        source: [B, N] int32, index into `sources` of each token's source; -1 if unknown and beyond the row's length.
        base_len: [B] int32, the context length that the row was drafted for.  A draft is dropped if its context has a
            different length by then.
        parents: [B, N] int32, index of each node's parent, `ROOT` for nodes that follow the context; a parent comes
            before its children.  None if only chains are allowed.  An empty buffer holds the parents of a chain, so
            proposers that draft chains need not write them.
        distribution: which of `draft_logits` and `draft_probs` is set, if any.
        draft_logits: [B, N, Vd]; the token was drawn from softmax(logits / temperature) and from nothing else.
        draft_probs: [B, N, Vd]; the token was drawn from exactly this distribution.
        draft_vocab: [Vd] int64, the token id of each column of the two; all other ids have probability 0.  None means
            that columns are token ids and Vd is V.
        drawn: [B, N] bool, true where the token was drawn from the distribution, which is the initial value of every
            entry; elsewhere the draft is one-hot and the distribution is ignored.  None means true everywhere.
        sources: names that `source` indexes (host).
    """

    token_ids: Tensor
    lengths: Tensor
    confidence: Tensor
    source: Tensor
    base_len: Tensor
    parents: Tensor | None = None
    distribution: Distribution = Distribution.ONE_HOT
    draft_logits: Tensor | None = None
    draft_probs: Tensor | None = None
    draft_vocab: Tensor | None = None
    drawn: Tensor | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def allocate(
        cls,
        batch_size: int,
        draft_length: int,
        *,
        device: torch.device | str = "cpu",
        trees: bool = False,
        distribution: Distribution = Distribution.ONE_HOT,
        vocab_size: int = 0,
        draft_vocab: Tensor | None = None,
        sources: Sequence[str] = (),
    ) -> Draft:
        """Allocate an empty buffer.  A distribution adds [B, N, Vd] float32; Vd is V without `draft_vocab`."""
        states = distribution is not Distribution.ONE_HOT
        if draft_vocab is not None:
            vocab_size = len(draft_vocab)
        full = partial(torch.full, device=device)
        grid = (batch_size, draft_length)
        dense = (batch_size, draft_length, vocab_size)
        chain = torch.arange(-1, draft_length - 1, dtype=torch.int32, device=device)
        return cls(
            token_ids=full(grid, NO_TOKEN, dtype=torch.int32),
            lengths=full((batch_size,), 0, dtype=torch.int32),
            confidence=full(grid, 0.0, dtype=torch.float32),
            source=full(grid, -1, dtype=torch.int32),
            base_len=full((batch_size,), 0, dtype=torch.int32),
            parents=chain.repeat(batch_size, 1) if trees else None,
            distribution=distribution,
            draft_logits=full(dense, 0.0, dtype=torch.float32) if distribution is Distribution.LOGITS else None,
            draft_probs=full(dense, 0.0, dtype=torch.float32) if distribution is Distribution.PROBS else None,
            draft_vocab=draft_vocab.to(device) if states and draft_vocab is not None else None,
            drawn=full(grid, True, dtype=torch.bool) if states else None,
            sources=tuple(sources),
        )

    @classmethod
    def of_rows(
        cls,
        token_ids: Sequence[Sequence[int]],
        confidence: Sequence[Sequence[float]],
        draft_length: int,
        *,
        device: torch.device | str = "cpu",
    ) -> Draft:
        """Copy chains of at most `draft_length` tokens from the host to a new buffer, all rows at once."""
        ids = [[*row, *[NO_TOKEN] * (draft_length - len(row))] for row in token_ids]
        levels = [[*row, *[0.0] * (draft_length - len(row))] for row in confidence]
        grid = torch.tensor(ids, dtype=torch.int32)
        lengths = torch.tensor(list(map(len, token_ids)), dtype=torch.int32)
        return cls(
            token_ids=grid.to(device),
            lengths=lengths.to(device),
            confidence=torch.tensor(levels, dtype=torch.float32).to(device),
            source=torch.where(grid >= 0, 0, -1).int().to(device),
            base_len=torch.zeros_like(lengths).to(device),
        )

    @property
    def batch_size(self) -> int:
        """B, the number of rows."""
        return self.token_ids.shape[0]

    @property
    def draft_length(self) -> int:
        """N, the most draft tokens of a row."""
        return self.token_ids.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.token_ids.device

    def view(self, batch_size: int, draft_length: int) -> Draft:
        """Return the first rows and columns of this buffer, sharing its memory."""
        cut = {name: tensor[:batch_size, :draft_length] for name, tensor in self._per_token().items()}
        return replace(self, lengths=self.lengths[:batch_size], base_len=self.base_len[:batch_size], **cut)

    def _per_token(self) -> dict[str, Any]:
        """Return the tensors that have an entry per token, by name; those that are None are left out."""
        named = {name: getattr(self, name) for name in _PER_TOKEN}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def reset(self, base_len: Tensor) -> None:
        """Empty the draft for contexts of `base_len` [B] tokens.  Distributions keep stale values."""
        self.lengths.zero_()
        self.base_len.copy_(base_len)
        if not self.draft_length:
            return
        self.source.fill_(-1)
        self.token_ids.fill_(NO_TOKEN)
        self.confidence.zero_()
        if self.drawn is not None:
            self.drawn.fill_(True)
        if self.parents is not None:
            self.parents.copy_(chain_parents(self))

    def clear(self) -> None:
        """Drop every row's draft and keep `base_len`."""
        self.reset(self.base_len)

    def set_row(
        self,
        row: int,
        token_ids: Sequence[int],
        confidence: float | Sequence[float],
        *,
        source: int | Sequence[int] = 0,
        parents: Sequence[int] | None = None,
    ) -> None:
        """Write one row from host data.  Meant for host proposers: each call on a GPU buffer is a copy.

        `confidence` and `source` are either one value for all tokens or one value per token.

        Raises:
            ContractError: the draft is longer than the buffer, its parts differ in length, or it is a tree and the
                buffer holds only chains.
        """
        count = len(token_ids)
        parts: dict[str, Sequence[float]] = {
            "token_ids": token_ids,
            "confidence": [confidence] * count if isinstance(confidence, int | float) else confidence,
            "source": [source] * count if isinstance(source, int) else source,
            "parents": range(ROOT, count - 1) if parents is None else parents,
        }
        counts = {name: len(values) for name, values in parts.items()}
        who = "Draft.set_row"
        if count > self.draft_length:
            raise ContractError.build("draft too long", who=who, found=count, expected=f"<= {self.draft_length}")
        if set(counts.values()) != {count}:
            raise ContractError.build("parts differ in length", who=who, found=counts, expected=f"{count} of each")
        if parents is not None and self.parents is None:
            raise ContractError.build("this engine takes no trees", who=who, expected="parents=None")
        self.lengths[row] = count
        for name, tensor in self._per_token().items():
            if name in parts:
                padded = [*parts[name], *[_PADDING[name]] * (self.draft_length - count)]
                tensor[row] = torch.tensor(padded, dtype=tensor.dtype, device=self.device)

    def mask(self) -> Tensor:
        """Return [B, N] bool, true for entries that hold a draft token."""
        return torch.arange(self.draft_length, device=self.device) < self.lengths[:, None]

    def survival(self) -> Tensor:
        """Return [B, N] float32: the probability that each draft token is reached and accepted; 0 beyond the length."""
        return along_paths(torch.where(self.mask(), self.confidence, 0.0), self.parents)[0]

    def expected_accepted(self) -> Tensor:
        """Return [B, N] float32: the expected number of accepted tokens of the path that ends at each entry."""
        return along_paths(torch.where(self.mask(), self.confidence, 0.0), self.parents)[1]

    def as_one_hot(self, rows: Tensor | None = None) -> Draft:
        """Return the draft with a one-hot distribution in `rows` [B] bool, or in all rows for None.

        Use this for draft tokens that were selected by their value.  Speculative sampling is lossless if each token
        was drawn from the distribution that it is verified against.  A token that is kept because of its value (its
        confidence was high, a grammar allows it, its path was the best of a tree) no longer follows that distribution,
        and verifying it against that distribution biases the output.  A one-hot draft is lossless however its token was
        selected.  `keep` and `as_chain` select tokens and therefore return one-hot drafts; code that selects tokens in
        any other way must call this method.

        With `rows`, the tokens are marked in `drawn` in place; without, the distribution is removed.
        """
        if self.distribution is Distribution.ONE_HOT:
            return self
        if rows is None:
            stripped = replace(self, distribution=Distribution.ONE_HOT, draft_logits=None, draft_probs=None)
            return replace(stripped, draft_vocab=None, drawn=None)
        drawn = torch.ones_like(self.token_ids, dtype=torch.bool) if self.drawn is None else self.drawn
        return replace(self, drawn=drawn.masked_fill_(rows[:, None], False))

    def as_chain(self) -> Draft:
        """Return a draft without branches: for a tree, the path with the most expected accepted tokens, as one-hot.

        Ties go to the path whose last node has the highest index, so a tree without branches is kept whole whatever
        its confidences.  A chain is returned unchanged.  Loops over N and reads nothing back.
        """
        if self.parents is None:
            return self
        return self.as_one_hot()._pick(*best_path(self.expected_accepted(), self.lengths, self.parents))

    def keep(self, mask: Tensor, chosen: Tensor | None = None) -> Draft:
        """Return a one-hot draft of the nodes in `mask` [B, N] bool, compacted in order, with parents renumbered.

        With `chosen` [B] bool, only those rows were selected by value and become one-hot; the full distributions of
        the other rows move with their nodes.  The mask must include every ancestor of a kept node (in a chain: be a
        prefix).  This is not checked, because a check would read back.
        """
        inside = mask & self.mask()
        order, parents = compacted(inside, self.parents)
        stated = self.as_one_hot() if chosen is None else self
        return stated._pick(order, inside.sum(1).to(torch.int32), parents).as_one_hot(chosen)

    def _pick(self, nodes: Tensor, lengths: Tensor, parents: Tensor | None = None) -> Draft:
        """Return a new draft of the first `lengths` [B] of the nodes at `nodes` [B, N], by default as a chain."""
        tensors: dict[str, Any] = {name: gather_nodes(tensor, nodes) for name, tensor in self._per_token().items()}
        picked = replace(self, lengths=lengths, **tensors | {"parents": parents})
        picked._pad()
        return picked

    def drawn_rows(self) -> Tensor:
        """Return [n] int64: the rows whose distribution is of use; on a GPU all rows, because nothing is read back."""
        if self.drawn is None or self.device.type != "cpu":
            return torch.arange(self.batch_size, device=self.device)
        return (self.drawn & self.mask()).any(1).nonzero()[:, 0]

    def shorten(self, lengths: Tensor) -> None:
        """Cut every row, in place, to at most `lengths` [B] tokens.  A prefix of a tree is a tree."""
        torch.minimum(self.lengths, lengths.to(self.lengths.dtype), out=self.lengths)
        self.lengths.clamp_(min=0)
        self._pad()

    def _pad(self) -> None:
        """Overwrite the entries beyond each row's length."""
        outside = ~self.mask()
        for name, tensor in self._per_token().items():
            if name in _PADDING:
                tensor.masked_fill_(outside, _PADDING[name])

    def pad_arrays(self, outside: npt.NDArray[np.bool_]) -> None:
        """Overwrite the entries `outside` [B, N] of a draft on a CPU, those beyond each row's length."""
        for name, padding in _PADDING.items():
            tensor = getattr(self, name)
            if tensor is not None:
                tensor.numpy()[outside] = padding

    def copy_(self, other: Draft) -> None:
        """Copy another draft of the same shape into this buffer, across devices if necessary.

        If this buffer has no room for a full distribution, the tokens become one-hot drafts, which is also lossless.
        Distributions that no token was drawn from are not copied from the CPU.

        Raises:
            ContractError: `other` is a tree and this buffer is not, or it lacks this buffer's distribution.
        """
        is_missing = self.distribution is not Distribution.ONE_HOT and self.distribution is not other.distribution
        if is_missing or (self.parents is None and other.parents is not None):
            raise ContractError.build(
                "cannot hold that draft",
                who="Draft.copy_",
                found=f"{other.distribution.value}, {'chain' if other.parents is None else 'tree'}",
                expected=f"{self.distribution.value}, {'chain' if self.parents is None else 'chain or tree'}",
            )
        self.lengths.copy_(other.lengths)
        self.base_len.copy_(other.base_len)
        theirs = other._per_token()
        for name, tensor in self._per_token().items():
            if name in _DISTRIBUTIONS and name in theirs and other.device.type == "cpu":
                rows = other.drawn_rows()
                tensor[rows.to(self.device)] = theirs[name][rows].to(self.device)
            elif name in theirs:
                tensor.copy_(theirs[name])
        if self.parents is not None and other.parents is None:
            self.parents.copy_(chain_parents(self))

    def validate(self) -> None:
        """Raise `ContractError` if a shape, dtype or device is wrong.  Reads no values, so it is safe on a GPU."""
        rows = (self.batch_size,)
        grid = (self.batch_size, self.draft_length)
        for name in ("lengths", "base_len"):
            check_tensor(f"Draft.{name}", getattr(self, name), rows, (torch.int32,), self.device)
        for name, tensor in self._per_token().items():
            if name in _DTYPES:
                check_tensor(f"Draft.{name}", tensor, grid, (_DTYPES[name],), self.device)
        if self.distribution is not Distribution.ONE_HOT:
            name = self.distribution.value
            columns = ANY if self.draft_vocab is None else len(self.draft_vocab)
            check_tensor(f"Draft.{name}", getattr(self, name), (*grid, columns), (), self.device)


def chain_parents(draft: Draft) -> Tensor:
    """Return [B, N] int32, the parents that represent a chain as a tree: each token follows the one before it."""
    return torch.arange(ROOT, draft.draft_length - 1, dtype=torch.int32, device=draft.device).expand(
        draft.batch_size, -1
    )


_INTS = dict.fromkeys(("token_ids", "source", "parents"), torch.int32)
_DTYPES = {**_INTS, "confidence": torch.float32, "drawn": torch.bool}
_DISTRIBUTIONS = ("draft_logits", "draft_probs")
_PER_TOKEN = (*_DTYPES, *_DISTRIBUTIONS)
_PADDING = {"token_ids": NO_TOKEN, "confidence": 0.0, "source": -1, "parents": ROOT}
