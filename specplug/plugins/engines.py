"""Interface of the engines that the command line drives; adapters register one with an `EngineSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specplug.metrics import MetricsSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request from the command line.

    Attributes:
        prompt: text, or token ids.
        top_logprobs: number of log-probabilities to return for each output token; 0 returns none.
        json_schema: schema that the output must follow; None leaves it free.
        specplug: per-request fields, as over HTTP.
    """

    prompt: str | Sequence[int]
    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None
    specplug: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextUpdate:
    """Output that one engine step added to one request.

    Attributes:
        index: position of the request in the list given to `TextEngine.stream`.
        text, token_ids: the new text and tokens.
        finish_reason: set in the request's last update.
        top_logprobs: for each new token, the log-probabilities of the likeliest tokens and of itself, by token id.
            An engine may report them after the tokens, with the request's last update at the latest.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    top_logprobs: Sequence[Mapping[int, float]] = ()


class Counters(Protocol):
    """Counters of drafted and accepted tokens; `specplug.metrics.SpecMetrics` is one implementation."""

    def snapshot(self) -> MetricsSnapshot:
        """Return the counts so far."""


class TextEngine(Protocol):
    """An engine that `specplug generate`, `demo` and `audit` can drive."""

    @property
    def metrics(self) -> Counters:
        """Counters since the engine was built."""

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        """Serve the requests together and yield updates as the engine produces them.

        Raises:
            RequestError: a request is invalid, or asks for something that the engine cannot do offline.
        """

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""

    def describe(self) -> str:
        """Name model, size, device and dtype in one line."""

    def close(self) -> None:
        """Release the engine."""
