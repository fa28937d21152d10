"""What vLLM and SGLang servers answer, as schemas, and the one reader that holds an answer to them.

Servers may answer anything, so nothing else reads their JSON.  Keys that no schema names are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, Strict, ValidationError

from specplug.errors import EngineError, SpecplugError, text_of

S = TypeVar("S", bound=BaseModel)

_LONGEST_LIST = 1 << 18
_LONGEST_SHOWN = 120


def _is_number(value: float) -> float:
    if value != value:  # JSON has no NaN, but Python's encoder writes it
        raise ValueError("a number")
    return value


Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
TokenId = Annotated[int, Strict(), Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(max_length=_LONGEST_LIST)]
Logprob = Annotated[float, Strict(), AfterValidator(_is_number)]


class Model(BaseModel):
    """A served model."""

    id: str


class Models(BaseModel):
    """`GET /v1/models`."""

    data: list[Model] = Field(min_length=1)


class Version(BaseModel):
    """`GET /version` of vLLM, `GET /server_info` of SGLang."""

    version: str | None = None


class Tokens(BaseModel):
    """`POST /tokenize`."""

    tokens: TokenIds


class Detokenized(BaseModel):
    """`POST /detokenize`: vLLM calls the text `prompt`."""

    prompt: str = ""
    text: str = ""


class Anything(BaseModel):
    """An answer of which only the status counts."""


class Total(BaseModel):
    """Counts of drafts since the server's start."""

    target_steps: Count
    proposed: Count
    accepted: Count
    rejected: Count
    emitted: Count


class Lossy(BaseModel):
    """The expected number of accepted tokens that lossless verification would have rejected."""

    departed: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = 0.0


class Metrics(BaseModel):
    """Metrics of a process that drafts or counts."""

    total: Total
    lossy: Lossy = Lossy()


class Worker(BaseModel):
    """A worker; only those that count have metrics."""

    metrics: Metrics | None = None


class Control(BaseModel):
    """The operator's settings."""

    mode: Literal["on", "off"]


class Scheduler(Worker):
    """The scheduler, which counts if the engine's own drafter drafts."""

    control: Control


class Engine(BaseModel):
    """One engine of the server."""

    scheduler: Scheduler
    workers: list[Worker]


class Status(BaseModel):
    """`GET /specplug/status`."""

    versions: dict[str, str] = {}
    engines: list[Engine] = Field(min_length=1)

    @property
    def mode(self) -> Literal["on", "off"]:
        """ "off" if any engine is off."""
        return "off" if any(engine.scheduler.control.mode == "off" for engine in self.engines) else "on"

    @property
    def metrics(self) -> Iterator[Metrics]:
        """The metrics of every process that counts."""
        for engine in self.engines:
            for part in (*engine.workers, engine.scheduler):
                if part.metrics is not None:
                    yield part.metrics


class Function(BaseModel):
    """The called function of a tool call, or a part of it."""

    name: str | None = None
    arguments: str | None = None


class Call(BaseModel):
    """A tool call, or a part of it."""

    index: Count | None = None
    function: Function | None = None


class Message(BaseModel):
    """A chat's message, or a part of it."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Logprobs(BaseModel):
    """Log-probabilities of a completion's tokens; tokens are named "token_id:17"."""

    tokens: list[str] | None = None
    token_logprobs: list[Logprob] | None = None
    top_logprobs: list[dict[str, Logprob] | None] | None = None


class Choice(BaseModel):
    """An answer of OpenAI's API, or a part of it."""

    text: str | None = None
    token_ids: TokenIds | None = None
    logprobs: Logprobs | None = None
    message: Message | None = None
    delta: Message | None = None
    finish_reason: str | None = None


class Usage(BaseModel):
    """Tokens of a request."""

    completion_tokens: Count


class Event(BaseModel):
    """An event of a stream of OpenAI's API."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Whole(Event):
    """A whole answer of OpenAI's API."""

    choices: list[Choice] = Field(min_length=1)


class Reason(BaseModel):
    """Why SGLang ended an answer."""

    type: str


class About(BaseModel):
    """SGLang's figures of an answer: log-probabilities are (value, token, text)."""

    finish_reason: Reason | None = None
    output_token_logprobs: list[tuple[Logprob, TokenId, Any]] | None = None
    output_top_logprobs: list[list[tuple[Logprob, TokenId, Any]] | None] | None = None


class Generated(BaseModel):
    """`POST /generate` of SGLang."""

    text: str
    output_ids: TokenIds
    meta_info: About


def read(schema: type[S], answer: bytes | str, who: str) -> S:
    """Return a server's answer.

    Args:
        schema: what it must be.
        answer: JSON.
        who: method and URL, for the message.

    Raises:
        EngineError: it is no JSON, or does not follow the schema.
    """
    try:
        return schema.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(text_of(part) for part in first["loc"])
        shown = text_of(first["input"], repr)[:_LONGEST_SHOWN] if answer else "an empty body"
        raise unexpected(who, f"{where}: {shown}" if where else shown, first["msg"]) from None


def unexpected(who: str, found: str, expected: str | None = None, remedy: str | None = None) -> SpecplugError:
    """Return the error of an answer that is not as expected, on one line and without control characters."""
    line = "".join(char if char.isprintable() else " " for char in " ".join(found.split()))
    what = "the server does not answer as expected"
    return EngineError.build(what, who=who, found=line, expected=expected, remedy=remedy)
