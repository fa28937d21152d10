"""What the parts of an audit share: probes and their material, sides (the embedded engine's here), checks, findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from specplug.errors import RequestError
from specplug.plugins.embedded import TextEngine, TextRequest
from specplug.tools.client.answers import Answer

TOP_LOGPROBS = 20
"""Log-probabilities requested per token; the most that vLLM gives by default."""

LEAST_TOLERANCE = 1e-4
"""Gaps below it are near ties even where no noise was measured: float32 sums in another order."""

NOISE_FACTOR = 4.0
"""The audited engine may sum in an order that differs more than the control's two runs."""

MOST_EXAMPLES = 5
"""Examples of differences that a finding lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request of an audit: a completion of the token ids `prompt`, or a chat of OpenAI's `messages`.

    Attributes:
        top_logprobs: number of log-probabilities to return for each output token.
        tool_choice: "auto", "required" or a tool's name.
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
        """All of the request's specplug fields; the reference text is a list of token ids."""
        return {**({"references": list(self.expected)} if self.expected else {}), **self.fields}


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Draft tokens that an engine has accepted and rejected since it started.

    `departed` is the expected number of accepted ones that lossless verification would have rejected.
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

    def flags(self) -> Mapping[str, Any]:
        """Return the engine's arguments that shape its answers, by name; none if they cannot be read."""


@dataclass(frozen=True, slots=True)
class Material:
    """What probes are made from: prompts, as token ids and as text, and the audited engine's greedy answers to them."""

    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    greedy: tuple[Answer, ...]
    max_tokens: int

    def probe(self, number: int, **given: Any) -> Probe:
        """Return a probe of a prompt, greedy and with its greedy answer to draft from unless `given` says otherwise."""
        prompt = self.prompts[number]
        defaults = {"max_tokens": self.max_tokens, "expected": prompt + self.greedy[number].token_ids}
        return Probe(prompt=prompt, **{**defaults, **given})


@dataclass(frozen=True, slots=True)
class ControlAnswers:
    """The control's own greedy answers to the prompts, in one batch, and how they differ from those to each alone.

    `noise` is the largest difference of a log-probability after equal texts, and `self_differences` the number of
    answers that differ.
    """

    greedy: tuple[Answer, ...] = ()
    noise: float = 0.0
    self_differences: int = 0

    @property
    def tolerance(self) -> float:
        """The gap of two log-probabilities below which their order is a matter of rounding."""
        return max(LEAST_TOLERANCE, NOISE_FACTOR * self.noise)

    @property
    def gives_logprobs(self) -> bool:
        """Whether the control's answers have log-probabilities."""
        return any(answer.top_logprobs for answer in self.greedy)


class CheckOutcome(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNPROVEN = "unproven"
    """The comparison proves nothing: no draft was at work that could have made a difference, or the flags differ."""
    NOT_RUN = "not run"
    """The engine cannot do what the check needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check, whose `summary` is a sentence with its `figures`.

    `examples` are at most `MOST_EXAMPLES` of what differed, and `drafts` the draft tokens decided while its probes ran;
    None if the engine does not report them.
    """

    check: str
    status: CheckOutcome
    summary: str
    examples: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    drafts: DraftCounts | None = None

    def with_drafts(self, drafts: DraftCounts | None) -> Finding:
        """Return the result with its draft counts; a check that passed proves nothing unless a draft was accepted."""
        if self.status is CheckOutcome.PASSED and not (drafts and drafts.accepted):
            why = "no draft was accepted meanwhile" if drafts else "the engine does not report its drafts"
            return replace(self, drafts=drafts, status=CheckOutcome.UNPROVEN, summary=f"{self.summary}; {why}")
        return replace(self, drafts=drafts)


def report_finding(
    check: str, failures: Sequence[str], summary: str, *, proves: bool = True, **figures: Any
) -> Finding:
    """Return a result that failed if there are failures, and is unproven if it `proves` nothing without any."""
    status = CheckOutcome.FAILED if failures else CheckOutcome.PASSED if proves else CheckOutcome.UNPROVEN
    return Finding(check, status, summary, tuple(failures[:MOST_EXAMPLES]), figures)


def check_answers(check: str, answers: Sequence[Answer], who: str) -> Finding | None:
    """Return a result if probes had no answer: "not run" if all of them were refused by name, else "failed"."""
    errors = [answer.error for answer in answers if answer.error is not None]
    if not errors:
        return None
    status = CheckOutcome.NOT_RUN if all(answer.refused for answer in answers) else CheckOutcome.FAILED
    summary = f"{who}: {len(errors)} of {len(answers)} requests had no answer"
    return Finding(check, status, summary, tuple(dict.fromkeys(errors))[:MOST_EXAMPLES])


class Check(ABC):
    """One question of an audit, chosen by its name on the command line.

    The audited engine answers first, because only one of the two engines may fit the device's memory at a time.
    """

    name: str

    @abstractmethod
    def probes(self, material: Material) -> list[Probe]:
        """Return the probes for the audited engine."""

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        """Return the probes for the control, given the audited engine's answers; none if its greedy answers will do."""
        return []

    @abstractmethod
    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Judge the answers of the audited engine by those of the control; all of them were answered."""


class TextEngineSide:
    """A `Side` over an engine, whose counts are read if it `drafts`; `form` makes a prompt of a text."""

    def __init__(self, engine: TextEngine, *, drafts: bool, form: Callable[[str], Any] = str) -> None:
        self._engine = engine
        self._drafts = drafts
        self._form = form

    def tokenize(self, text: str) -> tuple[int, ...]:
        prompt = self._form(text)
        return tuple(self._engine.tokenize(prompt) if isinstance(prompt, str) else prompt)

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        """Answer probes in batches of `together`; chats and JSON schemas need servers."""
        answers: list[Answer] = []
        for first in range(0, len(probes), together):
            batch = probes[first : first + together]
            try:
                answers += self._batch(batch)
            except RequestError as error:
                answers += [Answer(error=str(error), refused=True) for _ in batch]
            for _ in batch:
                done()
        return answers

    def draft_counts(self) -> DraftCounts | None:
        """Return the engine's counts; None for an engine that does not speculate."""
        if not self._drafts:
            return None
        snapshot = self._engine.metrics.snapshot()
        return DraftCounts(snapshot.total.accepted, snapshot.total.rejected, snapshot.lossy.departed)

    def describe(self) -> str:
        return self._engine.describe()

    def flags(self) -> dict[str, Any]:
        """Return none: both engines are built alike."""
        return {}

    def _batch(self, probes: Sequence[Probe]) -> list[Answer]:
        if any(probe.messages for probe in probes):
            raise RequestError("chats, tools and reasoning are parsed by servers only")
        if any(probe.json_schema is not None for probe in probes):
            raise RequestError("the embedded engine has no JSON schemas")
        answers = [Answer()] * len(probes)
        for update in self._engine.stream([_request(probe) for probe in probes]):
            before = answers[update.index]
            answers[update.index] = Answer(
                token_ids=(*before.token_ids, *update.token_ids),
                text=before.text + update.text,
                finish_reason=update.finish_reason or before.finish_reason,
                top_logprobs=(*before.top_logprobs, *update.top_logprobs),
            )
        return answers


def _request(probe: Probe) -> TextRequest:
    references = {"references": [{"token_ids": list(probe.expected)}]} if probe.expected else {}
    return TextRequest(
        prompt=probe.prompt,
        max_tokens=probe.max_tokens,
        temperature=probe.temperature,
        top_k=probe.top_k,
        seed=probe.seed,
        stop=probe.stop,
        top_logprobs=probe.top_logprobs,
        specplug={**probe.specplug, **references},
    )
