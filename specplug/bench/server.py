"""The measured server: its OpenAI API for requests, and specplug's operator routes for the mode."""

from __future__ import annotations

import time
from dataclasses import dataclass

from specplug.bench.prompts import Mode, Prompt
from specplug.client.answers import Anything, Choice, Event, Models, Status
from specplug.client.http import Client
from specplug.errors import EngineError

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


class Server(Client):
    """A vLLM or SGLang server that was started with specplug.  Calls raise as `Client.ask` does."""

    async def model(self) -> str:
        """Return the name of the first model that the server lists."""
        return (await self.ask(Models, "GET", "/v1/models")).data[0].id

    async def status(self) -> Status:
        """Return the answer of `GET /specplug/status`."""
        return await self.ask(Status, "GET", "/specplug/status", operator=True)

    async def mode(self) -> Mode:
        """Return the mode of the server's engines; "off" if any engine is off."""
        return (await self.status()).mode

    async def set_mode(self, mode: Mode) -> None:
        """Switch speculation off or on for all requests."""
        await self.ask(Anything, "POST", "/specplug/mode", {"mode": mode}, operator=True)

    async def counts(self) -> dict[str, int]:
        """Return the counters of the server's drafts, summed over its engines."""
        totals = [metrics.total for metrics in (await self.status()).metrics]
        return {name: sum(getattr(total, name) for total in totals) for name in COUNTS}

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
        pieces: list[tuple[float, str]] = []
        tokens = 0

        def take(event: Event) -> None:
            nonlocal tokens
            if piece := "".join(map(_text_of, event.choices)):
                pieces.append((time.perf_counter() - began, piece))
            tokens = tokens if event.usage is None else event.usage.completion_tokens

        try:
            await self.stream(prompt.path, body, take)
        except EngineError as error:
            return Answer(error=str(error))
        times = [at for at, _ in pieces] or [0.0]
        return Answer("".join(piece for _, piece in pieces), tokens, times[0], times[-1])


def _text_of(choice: Choice) -> str:
    return choice.text or (choice.delta and choice.delta.content) or ""
