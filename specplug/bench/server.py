"""Client of the measured server: its OpenAI API for requests, and specplug's operator routes for the mode."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from specplug.bench.prompts import Mode, Prompt
from specplug.errors import EngineError, describe
from specplug.operator.status import counting

COUNTS = ("target_steps", "proposed", "accepted", "emitted")
"""Counters of `/specplug/status` from which a block's tokens per step are computed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered request.  Times are in seconds since it was sent.

    Attributes:
        tokens: output tokens, as counted by the server.
        first: time of the first text.
        last: time of the last text.
        error: description of a failure; the other fields are then meaningless.
    """

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    error: str | None = None


class Server:
    """A vLLM or SGLang server that was started with specplug.

    Args:
        url: the server's address, without "/v1".
        api_key: key for requests; None sends none.
        operator_key: key for specplug's routes; None sends `api_key`.
        timeout: most seconds that the server may be silent.
    """

    def __init__(self, url: str, *, api_key: str | None, operator_key: str | None, timeout: float = 600.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._requests = _bearer(api_key)
        self._operator = _bearer(operator_key or api_key)
        # Servers close a connection that was idle for 5 seconds, perhaps while a request is on its way.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout, limits=limits, trust_env=False)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """Return the name of the first model that the server lists."""
        answer = await self._call("GET", "/v1/models", self._requests)
        return str(answer["data"][0]["id"])

    async def status(self) -> dict[str, Any]:
        """Return the answer of `GET /specplug/status`."""
        found: dict[str, Any] = await self._call("GET", "/specplug/status", self._operator)
        return found

    async def mode(self) -> Mode:
        """Return the mode of the server's engines; "off" if any engine is off."""
        engines = (await self.status())["engines"]
        return "off" if any(engine["scheduler"]["control"]["mode"] == "off" for engine in engines) else "on"

    async def set_mode(self, mode: Mode) -> None:
        """Switch speculation off or on for all requests."""
        await self._call("POST", "/specplug/mode", self._operator, json={"mode": mode})

    async def counts(self) -> dict[str, int]:
        """Return the counters of the server's drafts, summed over its engines."""
        engines = (await self.status())["engines"]
        totals = [part["metrics"]["total"] for engine in engines for part in counting(engine)]
        return {name: sum(int(total[name]) for total in totals) for name in COUNTS}

    async def send(self, prompt: Prompt, model: str, max_tokens: int) -> Answer:
        """Send a greedy, streamed request; a failure is returned as an answer with an `error`."""
        body = {
            **prompt.body(),
            "model": model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        try:
            async with self._http.stream("POST", prompt.path, headers=self._requests, json=body) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    return Answer(error=f"HTTP {answer.status_code}: {text[:200]}")
                return await _collected(answer, began)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            return Answer(error=describe(error))

    async def _call(self, method: str, path: str, headers: dict[str, str], **body: Any) -> Any:
        """Call a route and return its answer.

        Raises:
            EngineError: the route does not answer; the message names the route, the response and a remedy.
        """
        try:
            answer = await self._http.request(method, path, headers=headers, **body)
        except httpx.HTTPError as error:
            raise _failed(f"{method} {path}", describe(error), None) from error
        if answer.status_code != 200:
            found = f"HTTP {answer.status_code}: {answer.text[:200]}"
            raise _failed(f"{method} {self.url}{path}", found, _REMEDIES.get(answer.status_code))
        return answer.json()


async def _collected(answer: httpx.Response, began: float) -> Answer:
    """Read a stream of server-sent events to its end."""
    text, tokens, first, last = "", 0, 0.0, 0.0
    async for event in _events(answer):
        if "error" in event:
            return Answer(error=str(event["error"])[:200])
        piece = "".join(_text_of(choice) for choice in event.get("choices", ()))
        if piece:
            last = time.perf_counter() - began
            first, text = first or last, text + piece
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return Answer(text, tokens, first, last)


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield json.loads(data)


def _text_of(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


_REMEDIES = {
    401: "Give the key with --api-key, or the operator's with --operator-key",
    403: "Give the operator's key with --operator-key, or run the benchmark on the server's own machine",
    404: "Start the server with specplug and its routes, as docs/operations.md describes",
}


def _failed(who: str, found: str, remedy: str | None) -> Exception:
    return EngineError.build("the server does not answer as expected", who=who, found=found, remedy=remedy)
