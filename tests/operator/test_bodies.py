"""Bodies of operators' requests: bounded in size, and in the time that a slow client may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from specplug.operator.orders import BodyError, read_body, read_order


async def pieces(*sent: bytes) -> AsyncIterator[bytes]:
    for piece in sent:
        yield piece


def test_a_body_is_joined():
    assert asyncio.run(read_body(pieces(b"ab", b"", b"cd"), 4)) == b"abcd"


def test_a_body_that_is_too_large_is_not_read_to_its_end():
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    with pytest.raises(BodyError, match="too large"):
        asyncio.run(read_body(endless(), 5000))


def test_a_client_that_stops_sending_is_given_up():
    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(BodyError, match="too slowly"):
        asyncio.run(read_body(stuck(), 100, patience=0.01))


def test_a_client_that_drips_is_given_up():
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b""
            await asyncio.sleep(0)

    with pytest.raises(BodyError, match="too slowly"):
        asyncio.run(read_body(drip(), 100, patience=0.01))


def test_what_has_arrived_earns_more_time():
    """A large body takes longer than a client may be silent."""

    async def steady() -> AsyncIterator[bytes]:
        begin = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < begin + 0.05:
            yield b"x" * 65536
            await asyncio.sleep(0)

    assert len(asyncio.run(read_body(steady(), 1 << 40, patience=0.01))) > 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [((b" " * 2**16, b"x"), 413), ((b"[" * 2**15,), 400), ((b"\xff",), 400), ((b"{}",), 400), ((b'{"mode": 1}',), 400)],
)
def test_an_order_is_bounded_too(sent, status):
    with pytest.raises(BodyError) as caught:
        asyncio.run(read_order(pieces(*sent), "/specplug/mode"))
    assert caught.value.status == status
    assert asyncio.run(read_order(pieces(b'{"mode": ', b'"off"}'), "/specplug/mode")) == {"mode": "off"}
