"""Bodies of operators' requests, read within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

PATIENCE = 30.0
"""Seconds that a client may take beside what its bytes earn."""

BYTES_PER_SECOND = 1 << 16
"""A client that sends this fast, or faster, is never given up."""


class TooLargeError(Exception):
    """A body has more bytes than it may have."""


async def read_body(pieces: AsyncIterable[bytes], most: int, *, patience: float = PATIENCE) -> bytearray:
    """Return the body that arrives in `pieces`.

    Raises:
        TooLargeError: it has more than `most` bytes; the rest is not read.
        TimeoutError: it arrives too slowly.
    """
    body, begin = bytearray(), asyncio.get_running_loop().time()
    async with asyncio.timeout(patience) as limit:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                raise TooLargeError
            limit.reschedule(begin + patience + len(body) / BYTES_PER_SECOND)
    return body
