"""Reading of the bodies of operators' requests, within limits on size and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable
from typing import Any

from specplug.errors import SpecplugError
from specplug.operator.control import parse_order

PATIENCE = 30.0
"""Seconds that a client may take in addition to the time that its bytes earn."""

BYTES_PER_SECOND = 1 << 16
"""A client that sends at least this fast never times out."""

MOST_ORDER_BYTES = 1 << 16
"""Most bytes of an order to `/specplug/mode`."""


class BodyError(SpecplugError):
    """A body cannot be taken; `status` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(body: AsyncIterable[bytes], most: int, *, patience: float = PATIENCE) -> bytearray:
    """Return the body that arrives in pieces.

    Raises:
        BodyError: the body has more than `most` bytes (413; the rest is not read), or arrives too slowly (408).
    """
    found, begin = bytearray(), asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(patience) as limit:
            async for piece in body:
                found += piece
                if len(found) > most:
                    raise BodyError(
                        413, f"the body is too large; found more than {most} bytes; expected at most {most}"
                    )
                limit.reschedule(begin + patience + len(found) / BYTES_PER_SECOND)
    except TimeoutError:
        expected = f"{BYTES_PER_SECOND // 1024} KiB a second, after the first {patience:.0f} seconds"
        raise BodyError(408, f"the body arrives too slowly; expected {expected}") from None
    return found


async def read_order(body: AsyncIterable[bytes], who: str) -> dict[str, Any]:
    """Return the fields of an order to `/specplug/mode`.

    Raises:
        BodyError: as `read_body` does, or it is no order (400).
    """
    try:
        text = await read_body(body, MOST_ORDER_BYTES)
    except BodyError as error:
        raise BodyError(error.status, f"{who}: {error}") from None
    try:
        order = parse_order(json.loads(text), who).model_dump(exclude_unset=True)
    except SpecplugError as error:
        raise BodyError(400, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise BodyError(400, f"the body is not JSON: {error}") from error
    if not order:
        raise BodyError(400, f"{who}: the order is empty; expected mode, num_speculative_tokens, or both")
    return order
