"""Probes that an audit sends, the answers to them, and the interface of what answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

TOP_LOGPROBS = 20
"""Log-probabilities requested per token; the most that vLLM gives by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request of an audit.

    Attributes:
        prompt: token ids of a completion's prompt; empty for a chat.
        messages: messages of a chat; empty for a completion.
        max_tokens: most output tokens.
        temperature, top_k: sampling parameters; temperature 0 is greedy, and top_k 0 is off.
        seed: of the sampled tokens, or None.
        stop: strings that end the output.
        top_logprobs: log-probabilities to return for each output token.
        json_schema: schema that the output must follow, or None.
        tools: tools in the form of OpenAI's chat API.
        tool_choice: "auto", "required" or a tool's name.
        stream: receive the answer as a stream, in which a step's tokens arrive together.
        expected: token ids that probably follow, sent as a reference text to draft from; engines without specplug
            ignore it.
        fields: further specplug fields of the request.
    """

    prompt: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str = "auto"
    stream: bool = False
    expected: tuple[int, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def specplug(self) -> dict[str, Any]:
        """Return all of the request's specplug fields; the reference text is a list of token ids."""
        return {**({"references": list(self.expected)} if self.expected else {}), **self.fields}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the server parsed it; `arguments` is JSON text, or what was meant to be."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one probe.

    Attributes:
        token_ids: output tokens; empty for chats.
        text: the output, or a chat's content.
        finish_reason: as the engine names it, or None.
        top_logprobs: for each output token, log-probabilities by token id.
        reasoning: the part of a chat's answer that the server parsed as reasoning.
        tool_calls: the tool calls that the server parsed.
        error: why the engine refused or failed; the other fields are then meaningless.
        refused: whether the engine refused the request by name, as something that it cannot do, rather than failed.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Draft tokens that an engine has accepted and rejected since it started.

    Attributes:
        departed: the expected number of accepted ones that lossless verification would have rejected; above 0 only
            under lossy verification, where the engine counts them.
    """

    accepted: int = 0
    rejected: int = 0
    departed: float = 0.0

    def __sub__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(
            self.accepted - other.accepted, self.rejected - other.rejected, self.departed - other.departed
        )


class Side(Protocol):
    """One of the two engines of an audit."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        """Answer probes in order, `together` of them at a time; call `done` after each."""

    def draft_counts(self) -> DraftCounts | None:
        """Return the counts so far; None if the engine does not report them."""

    def describe(self) -> str:
        """Return engine, version and model in one line."""


@dataclass(frozen=True, slots=True)
class Material:
    """What probes are made from.

    Attributes:
        prompts: token ids of the prompts.
        texts: the prompts as text.
        greedy: the audited engine's greedy answers to the prompts.
        max_tokens: most tokens of an answer.
    """

    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    greedy: tuple[Answer, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Control:
    """The control's own greedy answers to the prompts, and its numerical noise.

    Attributes:
        greedy: answers to the prompts in one batch, with log-probabilities if the engine gives them.
        noise: largest difference of a log-probability between prompts sent together and alone, after equal texts.
        self_differences: number of prompts whose answers differ between together and alone.
    """

    greedy: tuple[Answer, ...] = ()
    noise: float = 0.0
    self_differences: int = 0

    @property
    def tolerance(self) -> float:
        """Return the gap of two log-probabilities below which their order is a matter of rounding."""
        return max(LEAST_TOLERANCE, NOISE_FACTOR * self.noise)

    @property
    def gives_logprobs(self) -> bool:
        """Return whether the control's answers have log-probabilities."""
        return any(answer.top_logprobs for answer in self.greedy)


LEAST_TOLERANCE = 1e-4
"""Gaps below it are near ties even where no noise was measured: float32 sums in another order."""

NOISE_FACTOR = 4.0
"""The audited engine may sum in an order that differs more than the control's two runs."""
