"""HostProposer: a base class for proposers in plain Python and numpy, with one method called per request."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specplug.errors import ContractError, text_of
from specplug.interfaces import PluginContext, Proposer
from specplug.types.request import Request
from specplug.types.step import Draft, EngineBatch

Tokens = npt.NDArray[np.int32]
TokenIds = Sequence[int] | npt.NDArray[Any]
Confidence = float | Sequence[float] | npt.NDArray[Any]

DEFAULT_CONFIDENCE = 0.5
"""The confidence of drafts without one: neutral until calibration adjusts it."""


class HostDraft(NamedTuple):
    """The draft of one request.

    Attributes:
        token_ids: draft tokens, a chain.
        confidence: in [0, 1], one for all tokens, or one per token; see `Draft.confidence`.
        source: index into the proposer's `sources`, one for all tokens, or one per token.
    """

    token_ids: TokenIds
    confidence: Confidence = DEFAULT_CONFIDENCE
    source: int | Sequence[int] | npt.NDArray[Any] = 0


class HostProposer(Proposer):
    """Base of proposers that read one request's text at a time, on the CPU.

    Implement `draft`, and register with ``ProposerCaps(needs_host=True)`` so that batches arrive as snapshots in host
    memory.  A proposer that keeps per-request state also overrides `ingest` and follows the contract of `Proposer`.
    """

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    @abc.abstractmethod
    def draft(
        self, tokens: Tokens, limit: int, request: Request | None
    ) -> TokenIds | tuple[TokenIds, Confidence] | HostDraft:
        """Return the tokens that may follow, in order; an empty sequence for none.

        Args:
            tokens: [n] int32, n >= 1, prompt and output so far, after the last barrier (see `EngineBatch.barriers`).  A
                read-only view, valid only during this call.
            limit: the most draft tokens, at least 1; a longer draft is cut.
            request: the request's description if the engine has it, otherwise None.

        Returns:
            The token ids alone, the ids with their confidence, or a `HostDraft`.
        """

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Call `draft` for every row that may draft and has text, and write the results to `draft`."""
        if batch.device.type != "cpu":
            raise ContractError.build(
                "the batch is not in host memory",
                who=type(self).__name__,
                found=batch.device,
                expected="cpu",
                remedy="Register the proposer with ProposerCaps(needs_host=True)",
            )
        table = batch.tokens.numpy()
        table.flags.writeable = False  # of this view only: the owner of the memory may still write
        starts = _text_starts(batch)
        rows = batch.rows.tolist()
        lengths = batch.lengths.tolist()
        sheet = _Sheet(draft)
        for row, limit in enumerate(limits.tolist()):
            start = starts.get(row, 0)
            stop = lengths[row]
            if limit > 0 and start < stop:
                request = None if batch.requests is None else batch.requests[row]
                answer = self.draft(table[rows[row], start:stop], limit, request)
                sheet.write(row, _as_arrays(answer, type(self).__name__), limit)


def _text_starts(batch: EngineBatch) -> dict[int, int]:
    """Return, for each row with barriers, the start of the text after its last barrier."""
    starts: dict[int, int] = {}
    for barrier in batch.barriers:
        starts[barrier.row] = max(barrier.stop, starts.get(barrier.row, 0))
    return starts


def _as_arrays(answer: TokenIds | tuple[TokenIds, Confidence] | HostDraft, who: str) -> tuple[npt.NDArray[Any], ...]:
    """Return an answer's token ids, confidence and source, telling a tuple of ids from a tuple (ids, confidence)."""
    is_pair = isinstance(answer, tuple) and answer and not isinstance(answer[0], Integral)
    try:
        draft = HostDraft(*answer) if is_pair else HostDraft(answer)  # type: ignore[misc, arg-type]
        ids = np.asarray(draft.token_ids)
        levels = np.asarray(draft.confidence, np.float32)
        source = np.asarray(draft.source, np.int32)
    except (TypeError, ValueError):
        ids = np.empty((), object)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        expected = "token ids as a sequence of integers, a tuple (ids, confidence), or a specplug.HostDraft"
        raise ContractError.build("draft() returned no draft", who=who, found=text_of(answer, repr), expected=expected)
    return ids, levels, source


class _Sheet:
    """Writes rows through numpy views of a draft's tensors, because numpy slice assignment is far cheaper."""

    def __init__(self, draft: Draft) -> None:
        self._ids = draft.token_ids.numpy()
        self._confidence = draft.confidence.numpy()
        self._lengths = draft.lengths.numpy()
        self._source = draft.source.numpy()

    def write(self, row: int, drafted: tuple[npt.NDArray[Any], ...], limit: int) -> None:
        ids, levels, source = drafted
        for what, values in (("confidences", levels), ("sources", source)):
            if values.ndim and len(values) != len(ids):
                raise ContractError.build(
                    f"{what} and token ids differ in number", found=len(values), expected=len(ids)
                )
        count = min(len(ids), limit, self._ids.shape[1])
        if count:
            kept = ids[:count]
            self._ids[row, :count] = kept if kept.dtype == np.int32 else kept.tolist()  # a list is checked for overflow
            self._confidence[row, :count] = levels[:count] if levels.ndim else levels
            self._lengths[row] = count
            self._source[row, :count] = source[:count] if source.ndim else source
