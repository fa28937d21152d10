"""HostStep: a proposer's step, or a policy's trim half, as a C function, which needs neither Python nor a wait.

An engine's stream calls both.
"""

from __future__ import annotations

import ctypes
import inspect
from typing import NamedTuple, TypeVar


class Int64Struct(ctypes.Structure):
    """A C struct of int64 numbers, which `int64_fields` gives their places."""

    @property
    def address(self) -> int:
        """The address of the struct, whose owner keeps it alive."""
        return ctypes.addressof(self)


S = TypeVar("S", bound=type[Int64Struct])


def int64_fields(struct: S) -> S:
    """Decorate a struct: it has one number for each annotation, in their order."""
    struct._fields_ = [(name, ctypes.c_int64) for name in inspect.get_annotations(struct)]
    return struct


@int64_fields
class StepArguments(Int64Struct):
    """The arguments of a step of B rows with drafts of at most N tokens.

    The arrays are in host memory, contiguous unless noted otherwise, and live until the call returns.  Their contents
    are those of `EngineBatch`, the limits of `Proposer.propose`, and `Draft`, which arrives empty.
    """

    data: int
    """`HostStep.data`."""
    batch_size: int
    """B."""
    slots: int
    """Address of [B] int64."""
    table: int
    """Address of the token table, [R, L] int32, whose rows are `stride` elements apart."""
    num_rows: int
    """R."""
    stride: int
    table_rows: int
    """Address of [B] int64, each request's row of the token table."""
    lengths: int
    """Address of [B] int32, the tokens up to which the step ingests; 0 for rows that it must not touch."""
    num_new: int
    """Address of [B] int32, how many of these are new."""
    limits: int
    """Address of [B] int32, the most draft tokens."""
    ids: int
    """Address of [B, N] int32, whose rows are `draft_stride` elements apart, like those of the next ones."""
    confidence: int
    """Address of [B, N] float32."""
    draft_stride: int
    draft_lengths: int
    """Address of [B] int32."""
    sources: int
    """Address of [B, N] int32."""
    parents: int
    """Address of [B, N] int32, or 0 for chains."""
    first: int
    """Address of [B] int32, the text position of column 0 of each row of the token table, or 0 if that is 0."""
    engine_ids: int
    """Address of [B, G] int32, the draft of the engine's own drafter, which the proposer continues, -1 after its
    end; or 0."""
    num_engine_ids: int
    """G; 0 if the engine has no drafter, or its draft is not gone on with."""


SPARE = 4097
"""Elements of a trim half's workspace beyond one for each place of the drafts."""


@int64_fields
class TrimArguments(Int64Struct):
    """The arguments of a trim half, for B rows with drafts of at most N tokens.

    The arrays are in host memory, contiguous unless noted otherwise, and live until the call returns.
    """

    data: int
    """`HostStep.data`."""
    batch_size: int
    """B."""
    draft_length: int
    """N."""
    token_budget: int
    """`TrimLimits.token_budget`."""
    num_costs: int
    """M + 1."""
    costs: int
    """Address of [M + 1] int64, `TrimLimits.costs`."""
    decoding: int
    """Address of [B] bool, `TrimLimits.decoding`."""
    confidence: int
    """Address of [B, N] float32, whose rows are `draft_stride` elements apart, like those of `parents`."""
    parents: int
    """Address of [B, N] int32, or 0 for chains."""
    draft_stride: int
    draft_lengths: int
    """Address of [B] int32."""
    workspace: int
    """Address of [B * N + `SPARE`] float32, memory for the function's own use."""
    kept: int
    """Address of [B, N] bool; the function sets each entry, true for tokens to keep, like the mask of `Draft.keep`."""


OK, BUSY, FAILED = 0, 1, 2
"""What a step returns: done; busy, nothing was ingested or drafted; failed, all drafts of the step are dropped.

A busy step is not a fault: the next one receives the tokens again.  A trim half is never busy.
"""


class HostStep(NamedTuple):
    """A C function and its first argument.

    Attributes:
        function: address of `int step(int64_t arguments)`, where `arguments` is the address of `StepArguments`, or for
            a trim half of `TrimArguments`.  It runs on a thread of the driver: it takes no GIL, calls nothing of CUDA,
            raises no exception, waits for nobody and bounds its work.
        data: a number of the plug-in's choice.
    """

    function: int
    data: int
