"""Draft: the tokens that proposers draft for one step.  The adapter owns the buffer; proposers write into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.types.caps import Distribution
from specplug.types.paths import ROOT, along_paths, path_to

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

        def full(size: tuple[int, ...], value: float | bool, dtype: torch.dtype) -> Tensor:
            return torch.full(size, value, dtype=dtype, device=device)

        grid, dense = (batch_size, draft_length), (batch_size, draft_length, vocab_size)
        chain = torch.arange(-1, draft_length - 1, dtype=torch.int32, device=device)
        return cls(
            token_ids=full(grid, NO_TOKEN, torch.int32),
            lengths=full((batch_size,), 0, torch.int32),
            confidence=full(grid, 0.0, torch.float32),
            source=full(grid, -1, torch.int32),
            base_len=full((batch_size,), 0, torch.int32),
            parents=chain.repeat(batch_size, 1) if trees else None,
            distribution=distribution,
            draft_logits=full(dense, 0.0, torch.float32) if distribution is Distribution.LOGITS else None,
            draft_probs=full(dense, 0.0, torch.float32) if distribution is Distribution.PROBS else None,
            draft_vocab=draft_vocab.to(device) if states and draft_vocab is not None else None,
            drawn=full(grid, True, torch.bool) if states else None,
            sources=tuple(sources),
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

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[:batch_size, :draft_length]

        return replace(
            self,
            token_ids=self.token_ids[:batch_size, :draft_length],
            lengths=self.lengths[:batch_size],
            confidence=self.confidence[:batch_size, :draft_length],
            source=self.source[:batch_size, :draft_length],
            base_len=self.base_len[:batch_size],
            parents=cut(self.parents),
            draft_logits=cut(self.draft_logits),
            draft_probs=cut(self.draft_probs),
            drawn=cut(self.drawn),
        )

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
        levels = [confidence] * count if isinstance(confidence, int | float) else list(confidence)
        drafted_by = [source] * count if isinstance(source, int) else list(source)
        above = range(-1, count - 1) if parents is None else parents
        if count > self.draft_length:
            raise ContractError.build(
                "draft too long", who="Draft.set_row", found=count, expected=f"<= {self.draft_length}"
            )
        if {len(levels), len(above), len(drafted_by)} != {count}:
            raise ContractError.build(
                "parts of one draft differ in length",
                who="Draft.set_row",
                found=f"{len(levels)} confidences, {len(drafted_by)} sources and {len(above)} parents",
                expected=f"{count}, one for each token",
            )
        if parents is not None and self.parents is None:
            raise ContractError.build("this engine takes no trees", who="Draft.set_row", expected="parents=None")
        self.token_ids[row] = self._padded(token_ids, NO_TOKEN, torch.int32)
        self.confidence[row] = self._padded(levels, 0.0, torch.float32)
        if self.parents is not None:
            self.parents[row] = self._padded(above, ROOT, torch.int32)
        self.lengths[row] = count
        self.source[row] = self._padded(drafted_by, -1, torch.int32)

    def _padded(self, values: Sequence[float], padding: float, dtype: torch.dtype) -> Tensor:
        """Return host values as one row [N] of the buffer."""
        row = [*values, *[padding] * (self.draft_length - len(values))]
        return torch.tensor(row, dtype=dtype, device=self.device)

    def mask(self) -> Tensor:
        """Return [B, N] bool, true for entries that hold a draft token."""
        return torch.arange(self.draft_length, device=self.device) < self.lengths[:, None]

    def survival(self) -> Tensor:
        """Return [B, N] float32: the probability that each draft token is reached and accepted; 0 beyond the length."""
        return along_paths(self._certain(), self.parents)[0]

    def expected_accepted(self) -> Tensor:
        """Return [B, N] float32: the expected number of accepted tokens of the path that ends at each entry."""
        return along_paths(self._certain(), self.parents)[1]

    def _certain(self) -> Tensor:
        return torch.where(self.mask(), self.confidence, 0.0)

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
        gain = torch.where(self.mask(), self.expected_accepted(), -1.0)
        if self.draft_length == 0:
            return replace(self.as_one_hot(), parents=None)
        best = self.draft_length - 1 - gain.flip(1).argmax(1)
        path, lengths = path_to(torch.where(self.lengths > 0, best, ROOT), self.parents)
        inside = torch.arange(self.draft_length, device=self.device) < lengths[:, None]
        return self.as_one_hot()._pick(path, inside, lengths)

    def keep(self, mask: Tensor, chosen: Tensor | None = None) -> Draft:
        """Return a one-hot draft of the nodes in `mask` [B, N] bool, compacted in order, with parents renumbered.

        With `chosen` [B] bool, only those rows were selected by value and become one-hot; the full distributions of
        the other rows move with their nodes.  The mask must include every ancestor of a kept node (in a chain: be a
        prefix).  This is not checked, because a check would read back.
        """
        inside = mask & self.mask()
        order = torch.sort((~inside).to(torch.uint8), dim=1, stable=True).indices  # kept nodes first
        lengths = inside.sum(1).to(torch.int32)
        stated = self.as_one_hot() if chosen is None else self
        kept = stated._pick(order, torch.arange(self.draft_length, device=self.device) < lengths[:, None], lengths)
        kept = kept.as_one_hot(chosen)
        if self.parents is None:
            return kept
        place = inside.cumsum(1).to(torch.int32) - 1  # new index of each kept node
        above = self.parents.gather(1, order).long()
        moved = torch.where(above < 0, ROOT, place.gather(1, above.clamp(min=0)))
        return replace(kept, parents=torch.where(kept.mask(), moved, ROOT))

    def _pick(self, path: Tensor, inside: Tensor, lengths: Tensor) -> Draft:
        """Return the chain of the nodes `path` [B, N], restricted to `inside` [B, N] bool, with `lengths` [B]."""

        def distribution(full: Tensor | None) -> Tensor | None:
            return None if full is None else full.gather(1, path[:, :, None].expand(-1, -1, full.shape[2]))

        return replace(
            self,
            token_ids=torch.where(inside, self.token_ids.gather(1, path), NO_TOKEN),
            confidence=torch.where(inside, self.confidence.gather(1, path), 0.0),
            lengths=lengths,
            source=torch.where(inside, self.source.gather(1, path), -1),
            parents=None,
            draft_logits=distribution(self.draft_logits),
            draft_probs=distribution(self.draft_probs),
            drawn=None if self.drawn is None else self.drawn.gather(1, path),
        )

    def shorten(self, lengths: Tensor) -> None:
        """Cut every row, in place, to at most `lengths` [B] tokens.  A prefix of a tree is a tree."""
        torch.minimum(self.lengths, lengths.to(self.lengths.dtype), out=self.lengths)
        self.lengths.clamp_(min=0)
        outside = torch.arange(self.draft_length, device=self.device) >= self.lengths[:, None]
        self.token_ids.masked_fill_(outside, NO_TOKEN)
        self.confidence.masked_fill_(outside, 0.0)
        self.source.masked_fill_(outside, -1)
        if self.parents is not None:
            self.parents.masked_fill_(outside, ROOT)

    def copy_(self, other: Draft) -> None:
        """Copy another draft of the same shape into this buffer, across devices if necessary.

        If this buffer has no room for a full distribution, the tokens become one-hot drafts, which is also lossless.

        Raises:
            ContractError: `other` is a tree and this buffer is not, or it lacks this buffer's distribution.
        """
        lacking = self.distribution is not Distribution.ONE_HOT and self.distribution is not other.distribution
        if lacking or (self.parents is None and other.parents is not None):
            raise ContractError.build(
                "cannot hold that draft",
                who="Draft.copy_",
                found=f"{other.distribution.value}, {'chain' if other.parents is None else 'tree'}",
                expected=f"{self.distribution.value}, {'chain' if self.parents is None else 'chain or tree'}",
            )
        for name in _TENSORS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine.copy_(theirs)
        if self.parents is not None and other.parents is None:
            self.parents.copy_(chain_parents(self))

    def validate(self) -> None:
        """Raise `ContractError` if a shape, dtype or device is wrong.  Reads no values, so it is safe on a GPU."""
        rows, grid = (self.batch_size,), (self.batch_size, self.draft_length)
        expected: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "token_ids": (grid, torch.int32),
            "lengths": (rows, torch.int32),
            "confidence": (grid, torch.float32),
            "source": (grid, torch.int32),
            "base_len": (rows, torch.int32),
        }
        if self.parents is not None:
            expected["parents"] = (grid, torch.int32)
        if self.drawn is not None:
            expected["drawn"] = (grid, torch.bool)
        for name, (shape, dtype) in expected.items():
            self._check(name, shape, dtype)
        if self.distribution is not Distribution.ONE_HOT:
            full = self.draft_logits if self.distribution is Distribution.LOGITS else self.draft_probs
            columns: int | str = "V" if self.draft_vocab is None else len(self.draft_vocab)
            wrong = full is None or tuple(full.shape[:2]) != grid or full.ndim != 3 or full.device != self.device
            if wrong or (full is not None and columns not in ("V", full.shape[2])):
                raise ContractError.build(
                    f"Draft.{self.distribution.value} is missing or malformed",
                    found=None if full is None else f"{tuple(full.shape)} on {full.device}",
                    expected=f"[{self.batch_size}, {self.draft_length}, {columns}] on {self.device}",
                )

    def _check(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        tensor: Tensor = getattr(self, name)
        if tuple(tensor.shape) != shape or tensor.dtype is not dtype or tensor.device != self.device:
            raise ContractError.build(
                f"Draft.{name} is malformed",
                found=f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}",
                expected=f"{shape} {dtype} on {self.device}",
            )


def chain_parents(draft: Draft) -> Tensor:
    """Return [B, N] int32, the parents that represent a chain as a tree: each token follows the one before it."""
    return torch.arange(ROOT, draft.draft_length - 1, dtype=torch.int32, device=draft.device).expand(
        draft.batch_size, -1
    )


_TENSORS = (
    *("token_ids", "lengths", "confidence", "source", "base_len", "parents"),
    *("draft_logits", "draft_probs", "drawn"),
)
