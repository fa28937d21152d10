"""What vLLM and SGLang servers answer: schemas, the one reader that holds an answer to them, and `Answer`.

Servers may answer anything, so nothing else reads their JSON.  Keys that no schema names are ignored, except by
`ServerInfo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from specplug.errors import EngineError, SpecplugError, text_of

S = TypeVar("S", bound=BaseModel)

Mode = Literal["off", "on"]
"""Whether a server with specplug speculates."""

_LONGEST_LIST = 1 << 18
_LONGEST_SHOWN = 120


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the server parsed it; `arguments` is JSON text, or what was meant to be."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request.  Figures that are not read from it have their defaults.

    Attributes:
        token_ids, text: the output; chats have no tokens.
        finish_reason: as the engine names it, or None.
        top_logprobs: for each output token, log-probabilities by token id.
        reasoning, tool_calls: what the server parsed of a chat's answer.
        error: why the engine refused or failed; the other fields are then meaningless.
        refused: whether the engine refused the request by name, as something that it cannot do, rather than failed.
        num_tokens: output tokens of a stream, as counted by the server.
        first, last: times of a stream's first and last text, in seconds since the request was sent.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None
    refused: bool = False
    num_tokens: int = field(default=0, compare=False)
    first: float = field(default=0.0, compare=False)
    last: float = field(default=0.0, compare=False)

    @property
    def everything(self) -> str:
        """The whole output as one text: reasoning, text and tool calls."""
        return "".join([self.reasoning, self.text, *(f"{call.name}({call.arguments})" for call in self.tool_calls)])


def _is_number(value: float) -> float:
    if value != value:  # JSON has no NaN, but Python's encoder writes it
        raise ValueError("a number")
    return value


Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
TokenId = Annotated[int, Strict(), Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(max_length=_LONGEST_LIST)]
Logprob = Annotated[float, Strict(), AfterValidator(_is_number)]


class _Model(BaseModel):
    id: str


class ServedModels(BaseModel):
    """`GET /v1/models`."""

    data: list[_Model] = Field(min_length=1)


class Version(BaseModel):
    """`GET /version` of vLLM."""

    version: str | None = None


class ServerInfo(Version):
    """`GET /server_info` of SGLang, with the server's arguments as further keys."""

    model_config = ConfigDict(extra="allow")


class Tokenized(BaseModel):
    """`POST /tokenize`."""

    tokens: TokenIds


class Detokenized(BaseModel):
    """`POST /detokenize`: vLLM calls the text `prompt`."""

    prompt: str = ""
    text: str = ""


class Anything(BaseModel):
    """An answer of which only the status counts."""


_Counts = Annotated[list[Count], Field(max_length=_LONGEST_LIST)]
_Faults = dict[str, dict[str, Count]]


class DraftTotals(BaseModel):
    """Counts of all drafts or of one source since the server's start; see `specplug.metrics.SourceCounts`."""

    target_steps: Count
    proposed: Count
    accepted: Count
    rejected: Count
    emitted: Count
    tested_at: _Counts = []
    accepted_at: _Counts = []


class _LossyTotals(BaseModel):
    # the expected number of accepted tokens that lossless verification would have rejected
    departed: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = 0.0


class _ServedMetrics(BaseModel):
    total: DraftTotals
    by_source: dict[str, DraftTotals] = {}
    faults: _Faults = {}
    lossy: _LossyTotals = _LossyTotals()


class _ServedWorker(BaseModel):
    metrics: _ServedMetrics | None = None  # of those that draft or count
    details: dict[str, Any] = {}


class _OperatorControl(BaseModel):
    mode: Mode
    ceiling: Count | None = None


class _NewestPlan(BaseModel):
    draft_length: Count = 0


class _ServedScheduler(_ServedWorker):  # which counts if the engine's own drafter drafts
    control: _OperatorControl
    steps: Count = 0
    plan: _NewestPlan = _NewestPlan()
    policy: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    faults: _Faults = {}


class ServedEngine(BaseModel):
    """One engine of a server with specplug."""

    engine: Count = 0
    max_draft_length: Count = 0
    trees: bool = False
    scheduler: _ServedScheduler
    workers: list[_ServedWorker]

    @property
    def counting(self) -> list[_ServedWorker]:
        """The processes that count."""
        return [part for part in (*self.workers, self.scheduler) if part.metrics is not None]


class ServerStatus(BaseModel):
    """`GET /specplug/status`."""

    versions: dict[str, str] = {}
    engines: list[ServedEngine] = Field(min_length=1)

    @property
    def mode(self) -> Mode:
        """ "off" if any engine is off."""
        return "off" if any(engine.scheduler.control.mode == "off" for engine in self.engines) else "on"

    @property
    def metrics(self) -> Iterator[_ServedMetrics]:
        """The metrics of every process that counts."""
        for engine in self.engines:
            yield from (part.metrics for part in engine.counting if part.metrics is not None)


class _CalledFunction(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _CallPart(BaseModel):
    index: Count | None = None
    function: _CalledFunction | None = None


class ChatMessage(BaseModel):
    """A chat's message, or a part of it."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallPart] | None = None

    @property
    def thought(self) -> str:
        """The reasoning, whichever key it has."""
        return self.reasoning or self.reasoning_content or ""


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens; tokens are named "token_id:17"."""

    tokens: list[str] | None = None
    token_logprobs: list[Logprob] | None = None
    top_logprobs: list[dict[str, Logprob] | None] | None = None


class AnswerChoice(BaseModel):
    """An answer of OpenAI's API, or a part of it."""

    text: str | None = None
    token_ids: TokenIds | None = None
    logprobs: CompletionLogprobs | None = None
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None


class _Usage(BaseModel):
    completion_tokens: Count


class StreamEvent(BaseModel):
    """An event of a stream of OpenAI's API."""

    choices: list[AnswerChoice] = []
    usage: _Usage | None = None
    error: Any = None


class Whole(StreamEvent):
    """A whole answer of OpenAI's API."""

    choices: list[AnswerChoice] = Field(min_length=1)


class _FinishReason(BaseModel):
    type: str


class _GeneratedFigures(BaseModel):
    """SGLang's figures of an answer: log-probabilities are (value, token, text)."""

    finish_reason: _FinishReason | None = None
    output_token_logprobs: list[tuple[Logprob, TokenId, Any]] | None = None
    output_top_logprobs: list[list[tuple[Logprob, TokenId, Any]] | None] | None = None


class Generated(BaseModel):
    """`POST /generate` of SGLang."""

    text: str
    output_ids: TokenIds
    meta_info: _GeneratedFigures


def read(schema: type[S], answer: bytes | str, who: str) -> S:
    """Return a server's answer in JSON; `who` is the method and URL, for the message.

    One that is no JSON, or does not follow the schema, raises `EngineError`.
    """
    try:
        return schema.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(text_of(part) for part in first["loc"])
        shown = text_of(first["input"], repr)[:_LONGEST_SHOWN] if answer else "an empty body"
        found = f"{where}: {shown}" if where else shown
        raise answer_error(who, f"{found} ({first['msg']})", "an answer of vLLM or SGLang") from None


def answer_error(who: str, found: str, expected: str | None = None, remedy: str | None = None) -> SpecplugError:
    """Return the error of an answer that is not as expected, on one line and without control characters."""
    line = "".join(char if char.isprintable() else " " for char in " ".join(found.split()))
    what = "the server does not answer as expected"
    return EngineError.build(what, who=who, found=line, expected=expected, remedy=remedy)


def put_together(parts: Iterable[AnswerChoice], **figures: Any) -> Answer:
    """Return what OpenAI's API answered, by the first choice of the whole answer, or of each event of a stream."""
    text = ""
    reasoning = ""
    reason = None
    calls: dict[int, list[str]] = {}
    for part in parts:
        message = part.message or part.delta or ChatMessage()
        text += part.text or message.content or ""
        reasoning += message.thought
        reason = part.finish_reason or reason
        for place, call in enumerate(message.tool_calls or ()):
            known = calls.setdefault(place if call.index is None else call.index, ["", ""])
            function = call.function or _CalledFunction()
            known[0] += function.name or ""
            known[1] += function.arguments or ""
    called = tuple(ToolCall(*calls[index]) for index in sorted(calls))
    return Answer(text=text, reasoning=reasoning, finish_reason=reason, tool_calls=called, **figures)
