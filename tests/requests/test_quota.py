"""References of one client, and of all, hold a limited amount of memory, and large ones are parsed in turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specplug.errors import RequestError
from specplug.requests import wire
from specplug.requests.clients import BusyError, Quota, RequestClient
from specplug.requests.parser import INLINE_CHARACTERS, FieldParser
from specplug.settings.model import Limits
from specplug.settings.sources import load_settings
from specplug.text.request_tokenizer import RequestTokenizer

LIMITS = {"max_reference_tokens": 100_000, "max_client_reference_tokens": 40_000, "max_server_reference_tokens": 60_000}


class Bytes:
    """A tokenizer that records how each text starts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __deepcopy__(self, memo: Any) -> Bytes:
        return self

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.seen.append(text[:2])
        return list(text.encode())


def parser(tokenizer: Bytes, **limits: int) -> FieldParser:
    found = load_settings({"limits": LIMITS | limits}, env={})
    return FieldParser(found, 256, RequestTokenizer(lambda: tokenizer), RequestError)


def client(key: str | None) -> RequestClient:
    made = RequestClient([] if key is None else [(b"authorization", key.encode())])
    made.digest = key
    return made


def test_what_is_held_is_counted_by_client_until_released() -> None:
    quota = Quota(Limits(max_client_reference_tokens=10, max_server_reference_tokens=25))
    first, *_ = [quota.hold(name, 10) for name in ("a", "b")]
    with pytest.raises(BusyError, match=r"requests of this client .* found 11 .* at most 10, limits\.max_client"):
        quota.hold("a", 1)
    with pytest.raises(BusyError, match=r"requests of all clients .* found 26 .* limits\.max_server_reference_tokens"):
        quota.hold("c", 6)
    first()
    first()
    assert quota.held == 10
    quota.hold("a", 10)()
    assert quota.held == 10


def test_prompts_and_samples_count_and_end_with_the_http_request() -> None:
    """One request of a few megabytes could otherwise be copied into thousands of requests of the engine."""
    tokenizer = Bytes()
    own = parser(tokenizer)
    fields = {"specplug_references": [1] * 10_000}

    async def serve() -> None:
        one = client("a")
        parsed = await own.admitted(fields, one, 4)
        assert wire.reference_tokens(parsed) == wire.reference_tokens(wire.packed(parsed)) == 10_000
        with pytest.raises(BusyError):
            await own.admitted(fields, one, 1)
        await own.admitted(fields, client("b"), 2)
        with pytest.raises(BusyError, match="all clients"):
            await own.admitted(fields, client(None), 1)
        one.end()
        with pytest.raises(BusyError, match="this client"):
            await own.admitted(fields, client("a"), 5)
        await own.admitted(fields, client("a"), 4)
        await own.admitted(fields, None, 1000)  # a program's own

    asyncio.run(serve())


def test_text_that_waits_counts_and_mistakes_release_it() -> None:
    tokenizer = Bytes()
    own = parser(tokenizer, max_client_reference_tokens=30_000)

    async def serve() -> None:
        texts = ["x" * 50_000 for _ in range(3)]
        found = await asyncio.gather(
            *[own.parsed_beside({"specplug_references": text}, "a") for text in texts], return_exceptions=True
        )
        assert [type(one) for one in found] == [dict, dict, BusyError]
        for _ in range(3):
            with pytest.raises(RequestError, match="unknown request field"):
                await own.parsed_beside({"specplug_reference": "x" * 100_000}, "a")

    asyncio.run(serve())


def test_clients_take_turns_with_large_references() -> None:
    tokenizer = Bytes()
    own = parser(tokenizer, max_client_reference_tokens=10**6, max_server_reference_tokens=10**6)

    async def serve() -> None:
        many = [own.parsed_beside({"specplug_references": f"a{n}" + "x" * INLINE_CHARACTERS}, "a") for n in range(6)]
        await asyncio.gather(*many, own.parsed_beside({"specplug_references": "bb" + "x" * INLINE_CHARACTERS}, "b"))

    asyncio.run(serve())
    assert sorted(tokenizer.seen[:2]) == ["a0", "bb"], "the other client does not wait for all of the first one's"
    assert len(tokenizer.seen) == 7
