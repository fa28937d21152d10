"""The HTTP client: every failure of a server, silence included, raises an `EngineError` of one line with the URL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from specplug.errors import EngineError, describe
from specplug.operator.access import KEY_HEADER
from specplug.text.tokenizers import PROBE, marks_roles, messages
from specplug.tools.client.answers import (
    Answer,
    AnswerChoice,
    Anything,
    Detokenized,
    Mode,
    S,
    ServedModels,
    ServerStatus,
    StreamEvent,
    Tokenized,
    answer_error,
    put_together,
    read,
)

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds within which a request must be answered whole."""

LARGEST = 32 << 20
"""Most bytes of an answer."""

_REFUSALS = (400, 404, 422, 501)  # by which a server says that it does not have or take something
_IDLE = 2.0  # seconds; servers close an idle connection after 5, perhaps while a request is on its way
_REMEDIES = {
    401: "Give the key with --api-key, or the operator's with --operator-key",
    403: "Give the operator's key with --operator-key, or run the command on the server's own machine",
    404: "Start the server with specplug and its routes, as docs/operations.md describes",
}


class Refused(EngineError):
    """The server has answered with another status than 200, `status`."""

    status: int


class ServerClient:
    """A vLLM or SGLang server, by its address with or without "/v1".  One event loop must run all calls.

    Without an `operator_key`, specplug's routes are sent `api_key`; with both, servers that expect their own key in
    `Authorization` get it there.  `patience` is the seconds within which a request must be answered whole.  A wrong
    address, and certificates that cannot be read, raise `EngineError`.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, operator_key: str | None = None, patience: float = PATIENCE
    ) -> None:
        import httpx

        self.url = _address(url)
        self.patience = patience
        self._headers = _bearer(api_key)
        self._operator = [_bearer(operator_key or api_key)]
        if operator_key and api_key and api_key != operator_key:
            self._operator.append({**_bearer(api_key), KEY_HEADER: operator_key.strip()})
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE)
        # The environment's proxies would be timed, too; its certificates (SSL_CERT_FILE) are the user's.
        try:
            verify = httpx.create_ssl_context() if self.url.startswith("https:") else True
        except OSError as error:
            what = "the certificates of authorities cannot be read"
            raise EngineError.build(what, who="SSL_CERT_FILE or SSL_CERT_DIR", found=describe(error)) from error
        self._http = httpx.AsyncClient(timeout=patience, limits=limits, trust_env=False, verify=verify)

    async def __aenter__(self) -> ServerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, schema: type[S], method: str, path: str, body: Any = None, *, operator: bool = False) -> S:
        """Return the answer of a route.

        Another status than 200 raises `Refused`; no answer in time, or one not as the schema says, raises
        `EngineError`.
        """
        return read(schema, await self.body(method, path, body, operator=operator), f"{method} {self.url}{path}")

    async def ask_if_there(self, schema: type[S], method: str, path: str, body: Any = None) -> S | None:
        """Return the answer of a route, or None if the server does not have it or refuses the body."""
        try:
            return await self.ask(schema, method, path, body)
        except Refused as error:
            if error.status in (401, 403):
                raise
            return None

    async def body(self, method: str, path: str, body: Any = None, *, operator: bool = False) -> bytes:
        """Return the bytes that a route answers; raises as `ask`."""
        chunks: list[bytes] = []
        first, *others = self._operator if operator else [self._headers]
        try:
            await self._exchange(method, path, body, chunks.append, first, operator)
        except Refused as error:
            if error.status != 401 or not others:
                raise
            await self._exchange(method, path, body, chunks.append, others[0], operator)
        return b"".join(chunks)

    async def stream(self, path: str, body: Any) -> Answer:
        """Send a request of OpenAI's API, and return what its stream says, with times; raises as `ask`."""
        who, rest, ended = f"POST {self.url}{path}", b"", False
        began, times, num_tokens = time.perf_counter(), [], 0
        parts: list[AnswerChoice] = []

        def feed(chunk: bytes) -> None:
            nonlocal rest, ended, num_tokens
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    ended = True
                elif line.startswith(b"data:"):
                    event = read(StreamEvent, data, who)
                    if event.error is not None:
                        raise answer_error(who, str(event.error)[:200])
                    if event.usage is not None:
                        num_tokens = event.usage.completion_tokens
                    for part in event.choices[:1]:
                        parts.append(part)
                        delta = part.delta
                        if part.text or (delta and (delta.content or delta.thought or delta.tool_calls)):
                            times.append(time.perf_counter() - began)

        await self._exchange("POST", path, body, feed, self._headers)
        if not ended:
            raise answer_error(who, "a stream that breaks off", "data: [DONE] at its end")
        first, last = (times[0], times[-1]) if times else (0.0, 0.0)
        return put_together(parts, num_tokens=num_tokens, first=first, last=last)

    async def model(self) -> str:
        """Return the name of the first model that the server lists."""
        return (await self.ask(ServedModels, "GET", "/v1/models")).data[0].id

    async def status(self) -> ServerStatus:
        """Return the status of a server with specplug."""
        return await self.ask(ServerStatus, "GET", "/specplug/status", operator=True)

    async def set_mode(self, mode: Mode) -> None:
        """Switch speculation off or on for all requests of a server with specplug."""
        await self.ask(Anything, "POST", "/specplug/mode", {"mode": mode}, operator=True)

    async def has_chat_template(self, model: str) -> bool:
        """Return whether the model of the server has a chat template that marks roles."""
        body: dict[str, Any] = {"model": model, "messages": messages(PROBE)}
        found = await self.ask_if_there(Tokenized, "POST", "/tokenize", body)
        if found is None or not found.tokens:
            return False
        body = {"model": model, "tokens": found.tokens, "skip_special_tokens": False}
        shown = await self.ask_if_there(Detokenized, "POST", "/detokenize", body)
        return shown is not None and marks_roles(shown.prompt or shown.text)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Any,
        take: Callable[[bytes], None],
        headers: dict[str, str],
        operator: bool = False,
    ) -> None:
        import httpx

        url = f"{self.url}{path}"
        who = f"{method} {url}"
        try:
            async with (
                asyncio.timeout(self.patience),
                self._http.stream(method, url, headers=headers, json=body) as answer,
            ):
                size = 0
                start = b""
                async for chunk in answer.aiter_bytes():
                    size += len(chunk)
                    if size > LARGEST:
                        raise answer_error(who, f"more than {LARGEST >> 20} MiB", "an answer of at most so many")
                    if answer.status_code == 200:
                        take(chunk)
                    elif len(start) < 1000:
                        start += chunk
                if answer.status_code != 200:
                    raise _refused(who, answer.status_code, start, operator)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise answer_error(who, "no whole answer", f"one within {self.patience:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise answer_error(who, describe(error)) from error


async def answer_all(
    items: Sequence[T], together: int, send: Callable[[T], Awaitable[Answer]], done: Callable[[], None]
) -> list[Answer]:
    """Return the answers of `send` to the items, in order; a failure is an answer with an `error`.

    At most `together` requests are in flight, so that each answer triggers the next one; `done` is called after each.
    """
    places = asyncio.Semaphore(together)

    async def one(item: T) -> Answer:
        async with places:
            try:
                answer = await send(item)
            except EngineError as error:
                refused = isinstance(error, Refused) and error.status in _REFUSALS
                answer = Answer(error=str(error), refused=refused)
        done()
        return answer

    return list(await asyncio.gather(*map(one, items)))


def _address(url: str) -> str:
    """Return a server's address without "/v1"."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # a port that is no number
        is_one = False
    if not is_one:
        raise EngineError.build("no server's address", found=repr(url), expected="such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key.strip()}"}


def _refused(who: str, status: int, start: bytes, operator: bool) -> Refused:
    text = start.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(text)
        text = str(found["detail"] if "detail" in found else found["error"]["message"])
    remedy = _REMEDIES.get(status) if operator or status != 404 else None
    error = Refused(str(answer_error(who, f"HTTP {status}: {text[:600]}", remedy=remedy)))
    error.status = status
    return error
