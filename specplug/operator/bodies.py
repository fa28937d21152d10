"""Reading of the bodies of operators' requests, within limits on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

PATIENCE = 30.0
"""Seconds that a client may take in addition to the time that its bytes earn."""

BYTES_PER_SECOND = 1 << 16
"""A client that sends at least this fast never times out."""


class TooLargeError(Exception):
    """A body exceeds its size limit."""


async def read_body(pieces: AsyncIterable[bytes], most: int, *, patience: float = PATIENCE) -> bytearray:
    """Return the body that arrives in `pieces`.

    Raises:
        TooLargeError: the body has more than `most` bytes; the rest is not read.
        TimeoutError: the body arrives too slowly.
    """
    body, begin = bytearray(), asyncio.get_running_loop().time()
    async with asyncio.timeout(patience) as limit:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                raise TooLargeError
            limit.reschedule(begin + patience + len(body) / BYTES_PER_SECOND)
    return body
