"""HostStep: a proposer's step, or a policy's trim half, as a C function, which needs neither Python nor a wait.

An engine's stream calls both.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class StepArgument(enum.IntEnum):
    """Indices of a step's arguments, int64 numbers; B rows with drafts of at most N tokens.

    The arrays are in host memory, contiguous unless noted otherwise, and live until the call returns.  Their contents
    are those of `EngineBatch`, the limits of `Proposer.propose`, and `Draft`, which arrives empty.
    """

    DATA = 0
    """`HostStep.data`."""
    BATCH_SIZE = 1
    """B."""
    SLOTS = 2
    """Address of [B] int64."""
    TABLE = 3
    """Address of the token table, [R, L] int32, whose rows are `STRIDE` elements apart."""
    NUM_ROWS = 4
    """R."""
    STRIDE = 5
    TABLE_ROWS = 6
    """Address of [B] int64, each request's row of the token table."""
    LENGTHS = 7
    """Address of [B] int32, the tokens up to which the step ingests; 0 for rows that it must not touch."""
    NUM_NEW = 8
    """Address of [B] int32, how many of these are new."""
    LIMITS = 9
    """Address of [B] int32, the most draft tokens."""
    IDS = 10
    """Address of [B, N] int32, whose rows are `DRAFT_STRIDE` elements apart, like those of the next ones."""
    CONFIDENCE = 11
    """Address of [B, N] float32."""
    DRAFT_STRIDE = 12
    DRAFT_LENGTHS = 13
    """Address of [B] int32."""
    SOURCES = 14
    """Address of [B, N] int32."""
    PARENTS = 15
    """Address of [B, N] int32, or 0 for chains."""


class TrimArgument(enum.IntEnum):
    """Indices of a trim half's arguments, int64 numbers; B rows with drafts of at most N tokens.

    The arrays are in host memory, contiguous unless noted otherwise, and live until the call returns.
    """

    DATA = 0
    """`HostStep.data`."""
    BATCH_SIZE = 1
    """B."""
    DRAFT_LENGTH = 2
    """N."""
    TOKEN_BUDGET = 3
    """`TrimLimits.token_budget`."""
    NUM_PRICES = 4
    """P."""
    PRICES = 5
    """Address of [P] float32, `TrimLimits.prices`."""
    PRICES_AFTER = 6
    """Address of [P] int64, `TrimLimits.prices_after`."""
    DECODING = 7
    """Address of [B] bool, `TrimLimits.decoding`."""
    CONFIDENCE = 8
    """Address of [B, N] float32, whose rows are `DRAFT_STRIDE` elements apart, like those of `PARENTS`."""
    PARENTS = 9
    """Address of [B, N] int32, or 0 for chains."""
    DRAFT_STRIDE = 10
    DRAFT_LENGTHS = 11
    """Address of [B] int32."""
    WORKSPACE = 12
    """Address of [B, N] float32, memory for the function's own use."""
    KEPT = 13
    """Address of [B, N] bool; the function sets each entry, true for tokens to keep, like the mask of `Draft.keep`."""
    ENTRY = 14
    """Address of one float64, `TrimLimits.entry`."""


OK, BUSY, FAILED = 0, 1, 2
"""What a step returns: done; busy, nothing was ingested or drafted; failed, all drafts of the step are dropped.

A busy step is not a fault: the next one receives the tokens again.  A trim half is never busy.
"""


class HostStep(NamedTuple):
    """A C function and its first argument.

    Attributes:
        function: address of `int step(int64_t arguments)`, where `arguments` is the address of the numbers that
            `StepArgument` lists, or for a trim half `TrimArgument`.  It runs on a thread of the driver: it takes no
            GIL, calls nothing of CUDA, raises no exception, waits for nobody and bounds its work.
        data: a number of the plug-in's choice.
    """

    function: int
    data: int
