"""An audit's side over a running vLLM or SGLang server, with or without specplug."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import httpx

from specplug.audit.dialects import CHAT_PATH, Dialect, Sglang, Vllm, chat_answer, chat_body
from specplug.audit.probe import Answer, DraftCounts, Probe
from specplug.errors import EngineError, describe
from specplug.operator.status import counting
from specplug.text.chat import messages, server_has_chat_template

REFUSALS = (400, 404, 422, 501)
"""Status codes by which a server says that it does not have or take something."""

PATIENCE = 600.0
"""Seconds that a server may be silent."""

IDLE = 2.0
"""Seconds that an idle connection is kept; servers close it after 5, perhaps while a request is on its way."""


class ServerSide:
    """A `Side` over HTTP.

    Args:
        url: the server's address, with or without "/v1".
        api_key: key for requests; None sends none.
        operator_key: key for specplug's routes; None sends `api_key`.
        raw: leave prompts as they are, where the model has a chat template.

    Attributes:
        has_template: whether prompts are put into the model's chat template.

    Raises:
        EngineError: no vLLM or SGLang server answers.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, operator_key: str | None = None, raw: bool = False
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = _bearer(api_key)
        self._operator = _bearer(operator_key or api_key)
        limits = httpx.Limits(keepalive_expiry=IDLE)
        self._http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, limits=limits)
        self._mode: str | None = None
        self._dialect, self._version = self._recognise()
        self._model = str(self._call("GET", "/v1/models")["data"][0]["id"])
        self.has_template = not raw and server_has_chat_template(self._post, self._model)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""
        prompt = {"messages": messages(text)} if self.has_template else {"prompt": text}
        return tuple(self._call("POST", "/tokenize", {"model": self._model, **prompt})["tokens"])

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        """Answer probes with `together` requests in flight."""
        return asyncio.run(self._in_flight(probes, together, done))

    def draft_counts(self) -> DraftCounts | None:
        """Return the counts of specplug's status route, or of vLLM's metrics."""
        status = self._request("GET", "/specplug/status", headers=self._operator)
        if status.status_code == 200:
            parts = [part for engine in status.json()["engines"] for part in counting(engine)]
            totals = [part["metrics"]["total"] for part in parts]
            departed = sum(part["metrics"]["lossy"]["departed"] for part in parts)
            return DraftCounts(sum(t["accepted"] for t in totals), sum(t["rejected"] for t in totals), departed)
        return _from_metrics(self._request("GET", "/metrics").text)

    def set_mode(self, mode: Literal["on", "off"]) -> Literal["on", "off"]:
        """Switch speculation on or off; return the mode before.

        Raises:
            EngineError: specplug's operator routes do not answer.
        """
        engines = self._call("GET", "/specplug/status", headers=self._operator)["engines"]
        self._call("POST", "/specplug/mode", {"mode": mode}, headers=self._operator)
        self._mode = mode
        return "off" if any(engine["scheduler"]["control"]["mode"] == "off" for engine in engines) else "on"

    def describe(self) -> str:
        """Return address, engine, version and model."""
        mode = "" if self._mode is None else f", speculation switched {self._mode}"
        return f"{self._model} at {self.url}, {self._dialect.name} {self._version}{mode}"

    def _recognise(self) -> tuple[Dialect, str]:
        """Return the engine's dialect and version."""
        version = self._get("/version")
        if version is not None and "version" in version:
            return Vllm(), str(version["version"])
        info = self._get("/server_info") or self._get("/get_server_info")
        if info is not None:
            return Sglang(), str(info.get("version", "of unknown version"))
        raise EngineError.build(
            "the server is not recognised",
            who="specplug audit",
            found=f"neither GET /version nor GET /server_info at {self.url}",
            expected="a vLLM or SGLang server",
        )

    def _get(self, path: str) -> Any:
        """Return the JSON of a route, or None if there is none.

        Raises:
            EngineError: the server cannot be reached, or does not accept the key.
        """
        found = self._request("GET", path)
        if found.status_code in (401, 403):
            raise _unreachable(f"GET {self.url}{path}", f"HTTP {found.status_code}", "Give the key with --api-key")
        try:
            return found.json() if found.status_code == 200 else None
        except ValueError:
            return None

    def _post(self, path: str, body: Any) -> Any:
        """Return the JSON of an answer, or None if the server refuses."""
        found = self._request("POST", path, body)
        return found.json() if found.status_code == 200 else None

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        found = self._request(method, path, body, headers)
        if found.status_code != 200:
            raise _unreachable(f"{method} {self.url}{path}", f"HTTP {found.status_code}: {found.text[:200]}")
        return found.json()

    def _request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        try:
            return self._http.request(method, path, headers=headers or self._headers, json=body)
        except httpx.HTTPError as error:
            raise _unreachable(self.url, describe(error)) from error

    async def _in_flight(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE)
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, trust_env=False, limits=limits) as http:
            places = asyncio.Semaphore(together)

            async def one(probe: Probe) -> Answer:
                async with places:
                    answer = await self._one(http, probe)
                done()
                return answer

            return list(await asyncio.gather(*map(one, probes)))

    async def _one(self, http: httpx.AsyncClient, probe: Probe) -> Answer:
        if probe.messages:
            path, body = CHAT_PATH, chat_body(probe, self._model, self._dialect.arguments)
        else:
            path, body = self._dialect.path, self._dialect.body(probe, self._model)
        try:
            async with http.stream("POST", path, headers=self._headers, json=body) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    refused = answer.status_code in REFUSALS
                    return Answer(error=f"HTTP {answer.status_code}: {text[:300]}", refused=refused)
                if probe.stream:
                    return chat_answer([choice async for choice in _choices(answer)])
                found = json.loads(await answer.aread())
            return chat_answer(found["choices"][:1]) if probe.messages else self._dialect.answer(found)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            return Answer(error=describe(error))


@contextmanager
def connect(url: str, *, mode: Literal["on", "off"] | None = None, **given: Any) -> Iterator[ServerSide]:
    """Connect to a server, and switch speculation to `mode` meanwhile if one is given.

    Args:
        url: the server's address.
        mode: needs specplug's operator routes on the server, whose other clients it affects, too.
        given: further arguments of `ServerSide`.
    """
    side = ServerSide(url, **given)
    before = None if mode is None else side.set_mode(mode)
    try:
        yield side
    finally:
        if before is not None:
            side.set_mode(before)
        side.close()


async def _choices(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the first choice of each event of a stream."""
    async for line in answer.aiter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            for choice in json.loads(data).get("choices", ())[:1]:
                yield choice


def _from_metrics(text: str) -> DraftCounts | None:
    """Return vLLM's own counts, of all engines together; None if there are none.

    vLLM counts drafted tokens, so those after a rejection count as rejected, too.
    """
    totals = {}
    for name in ("accepted_tokens", "draft_tokens"):
        found = re.findall(rf"^vllm:spec_decode_num_{name}_total\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        totals[name] = sum(map(float, found)) if found else None
    accepted, drafted = totals["accepted_tokens"], totals["draft_tokens"]
    return None if accepted is None or drafted is None else DraftCounts(int(accepted), int(drafted - accepted))


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _unreachable(who: str, found: str, remedy: str | None = None) -> Exception:
    return EngineError.build("the server does not answer as expected", who=who, found=found, remedy=remedy)
