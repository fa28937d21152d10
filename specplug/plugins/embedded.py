"""Interface of the embedded engine, which runs models for the command line, and its lookup.

An adapter names its class as the entry point ``embedded`` of the group ``specplug.engine``, so the core imports none.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from specplug.errors import EngineError
from specplug.plugins.specs import resolve

if TYPE_CHECKING:
    from specplug.metrics import SpecMetrics  # imports torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request from the command line.

    Attributes:
        prompt: text, or token ids.
        top_logprobs: number of log-probabilities to return for each output token; 0 returns none.
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
    specplug: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextUpdate:
    """Output that one engine step added to one request.

    `index` is the request's position in the list given to `TextEngine.stream`.  The request's last update has the
    `finish_reason`, and `top_logprobs`: for each of its tokens, the log-probabilities of the likeliest ones and of
    itself.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    top_logprobs: Sequence[Mapping[int, float]] = ()


class TextEngine(Protocol):
    """The embedded engine, as `specplug generate`, `demo` and `audit` use it."""

    @property
    def metrics(self) -> SpecMetrics:
        """Counters since the engine was built."""

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        """Serve the requests together and yield updates as the engine produces them.

        Raises:
            RequestError: a request is invalid, or asks for something that the engine cannot do.
        """

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""

    def describe(self) -> str:
        """Name model, size, device and dtype in one line."""

    def close(self) -> None:
        """Release the engine."""


def embedded_engine() -> Callable[..., TextEngine]:
    """Return the installed embedded engine's class: ``(model: str, settings: Settings, **launch) -> TextEngine``.

    Raises:
        EngineError: none is installed.
        PluginError: its library is not installed, or does not import.
    """
    found = importlib.metadata.entry_points(group="specplug.engine", name="embedded")
    if not found:
        raise EngineError.build("no embedded engine is installed", remedy="Reinstall specplug")
    return resolve(next(iter(found)).value, "the embedded engine")
