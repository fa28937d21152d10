"""The clients of a soak: one request sent over HTTP, to its end or until the client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.soak.targets import Target
from tests.soak.traffic import Request

PATIENCE = 120.0
"""Seconds that a server may be silent; then it hangs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request, whose client perhaps `left` before the end.

    Attributes:
        status: HTTP status; 0 if the connection failed.
        text: the output or, where it was refused or failed, the reason.
    """

    request: Request
    status: int
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    text: str = ""
    left: bool = False
    seconds: float = 0.0


def connect(url: str) -> httpx.AsyncClient:
    """Return an HTTP client without limits on connections."""
    # Servers close a connection that was idle for 5 seconds, perhaps while a request is on its way.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, limits=limits)


async def send(http: httpx.AsyncClient, target: Target, request: Request) -> Outcome:
    """Send a request; return what became of it, failures of the connection included."""
    began = time.monotonic()
    try:
        found = await _sent(http, target, request)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        found = {"status": 0, "text": f"{type(error).__name__}: {error}"}
    return Outcome(request, seconds=time.monotonic() - began, **found)


async def _sent(http: httpx.AsyncClient, target: Target, request: Request) -> dict[str, Any]:
    headers = {} if request.api_key is None else {"Authorization": f"Bearer {request.api_key}"}
    given = {"json": target.body(request), "headers": headers}
    if request.stream:
        async with http.stream("POST", target.dialect.path, **given) as answer:
            if answer.status_code != 200:
                return {"status": answer.status_code, "text": (await answer.aread()).decode(errors="replace")}
            return await _streamed(answer, target, request)
    try:
        async with asyncio.timeout(request.seconds if request.kind == "disconnected" else None):
            answer = await http.post(target.dialect.path, **given)
    except TimeoutError:
        return {"status": 200, "left": True}
    if answer.status_code != 200:
        return {"status": answer.status_code, "text": answer.text}
    whole = target.dialect.answer(target.dialect.schema.model_validate(answer.json()))
    return {"status": 200, "token_ids": whole.token_ids, "finish_reason": whole.finish_reason, "text": whole.text}


async def _streamed(answer: httpx.Response, target: Target, request: Request) -> dict[str, Any]:
    """Read a stream to its end, or leave it when enough events have come."""
    tokens: tuple[int, ...] = ()
    reason, events = None, 0
    if request.kind == "aborted" and not request.events:
        return {"status": 200, "left": True}
    async for event in _events(answer):
        if "error" in event:
            return {"status": 0, "token_ids": tokens, "text": json.dumps(event)[:300]}
        tokens, finished = target.read_event(event, tokens)
        reason, events = finished or reason, events + 1
        if request.kind == "aborted" and events >= request.events and reason is None:
            return {"status": 200, "token_ids": tokens, "left": True}
    return {"status": 200, "token_ids": tokens, "finish_reason": reason}


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
