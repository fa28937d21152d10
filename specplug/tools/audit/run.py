"""An audit: the checks by name, and their execution on the audited engine, then on the control, before each judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

from specplug.errors import EngineError, SettingsError, suggest
from specplug.tools.audit.formats import Chat, Structured
from specplug.tools.audit.probe import (
    MOST_EXAMPLES,
    TOP_LOGPROBS,
    Check,
    CheckOutcome,
    ControlAnswers,
    DraftCounts,
    Finding,
    Material,
    Probe,
    Side,
    check_answers,
)
from specplug.tools.audit.sampled import Sampled
from specplug.tools.audit.texts import Greedy, Logprobs, Seeds, Stops, noise
from specplug.tools.client.answers import Answer

Open = Callable[[], AbstractContextManager[Side]]
"""Starts or connects a side; the two sides of an audit are never open at the same time."""

Progress = Callable[[str, int], Callable[[], None]]
"""Called with a title and a number of probes; returns what is called after each probe."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of an audit, of two engines that are described in one line each.

    `drafts` are the draft tokens decided during the audit; None if the audited engine does not report them.
    """

    audited: str
    control: str
    findings: tuple[Finding, ...]
    drafts: DraftCounts | None

    def has(self, *outcomes: CheckOutcome) -> bool:
        """Return whether a check had one of these outcomes."""
        return any(finding.status in outcomes for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Whether no check failed or went unproven, and at least one passed."""
        return self.has(CheckOutcome.PASSED) and not self.has(CheckOutcome.FAILED, CheckOutcome.UNPROVEN)

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return self.has(CheckOutcome.FAILED)

    def as_dict(self) -> dict[str, Any]:
        """Return the results ready for JSON."""
        return {**asdict(self), "passed": self.passed, "failed": self.failed}


def all_checks(samples: int) -> dict[str, Check]:
    """Return every check by name, in the order in which they run, with `samples` of each prompt and kind."""
    checks: list[Check] = [
        Greedy(),
        Sampled(samples),
        Stops(),
        Logprobs(),
        Structured(),
        Chat(
            "tools", ("required", "weather"), "tool calls", "Start both servers with a chat template that takes tools"
        ),
        Chat(
            "auto-tools",
            ("auto",),
            "tool calls",
            "Start both servers with their tool-call parser, and send prompts that call for tools",
        ),
        Chat("reasoning", (), "reasoning", "Start both servers with their reasoning parser"),
        Seeds(),
    ]
    return {check.name: check for check in checks}


def choose_checks(names: Sequence[str], samples: int) -> list[Check]:
    """Return the named checks, or, if none is named, all that every lossless engine must pass.

    An unknown name raises `SettingsError`.
    """
    known = all_checks(samples)
    for name in names:
        if name not in known:
            raise SettingsError.build("unknown check", who="--check", found=repr(name), remedy=suggest(name, known))
    requested = names or [name for name in known if name != Seeds.name]
    return [check for name, check in known.items() if name in requested]


def run(
    *,
    audited: Open,
    control: Open,
    texts: Sequence[str],
    checks: Sequence[Check],
    max_tokens: int,
    together: int,
    progress: Progress,
    fields: Mapping[str, Any] | None = None,
) -> Report:
    """Audit an engine that speculates against the same engine without speculation, the control.

    The prompts are `texts`, of which at most `together` are sent at a time, and `fields` are specplug fields of every
    request to the audited engine. An engine that does not start or answer raises `EngineError`.
    """
    problems: list[str] = []
    collected: list[tuple[Check, list[Answer], DraftCounts | None]] = []
    with audited() as side:
        opened = _OpenSide(side, "audited", together, progress, fields or {}, problems)
        name = side.describe()
        flags = side.flags()
        began = opened.counts()
        material = _material(opened, texts, max_tokens)
        for check in checks:
            # The first round of greedy prompts, from which the material is made, counts for the check of that name.
            before = began if check.name == "greedy" else opened.counts()
            answers = opened.answers(check.name, check.probes(material))
            collected.append((check, answers, _difference(opened.counts(), before)))
        total = _difference(opened.counts(), began)
    with control() as side:
        opened = _OpenSide(side, "control", together, progress, {}, problems)
        described = side.describe()
        different = _different(flags, side.flags())
        own = _control(opened, material)
        findings = [_judge(opened, *one, material, own) for one in collected]
    if problems:
        failed = f"{len(problems)} requests for prompts or counts had no answer; they are compared with nothing"
        findings.insert(
            0, Finding("answers", CheckOutcome.FAILED, failed, tuple(dict.fromkeys(problems))[:MOST_EXAMPLES])
        )
    return Report(name, described, (*different, *findings), total)


def _different(audited: Mapping[str, Any], control: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return a finding that names the flags in which two engines differ, if both can be read and there are any."""
    found = [
        f"{name}: {str(audited[name])[:80]} of the audited engine, {str(control[name])[:80]} of the control"
        for name in audited
        if name in control and audited[name] != control[name]
    ]
    if not found:
        return ()
    summary = f"{len(found)} flags differ, and may account for what differs below"
    return (Finding("flags", CheckOutcome.UNPROVEN, summary, tuple(found)),)


@dataclass(frozen=True, slots=True)
class _OpenSide:
    """A side, and how it is asked; failures that concern no check in particular are `problems`."""

    side: Side
    name: str
    together: int
    progress: Progress
    fields: Mapping[str, Any]
    problems: list[str]

    def answers(self, title: str, probes: Sequence[Probe], together: int | None = None) -> list[Answer]:
        sent = [replace(probe, fields=self.fields) for probe in probes] if self.fields else probes
        done = self.progress(f"{self.name}: {title}", len(probes))
        return self.side.answer(sent, together or self.together, done)

    def counts(self) -> DraftCounts | None:
        try:
            return self.side.draft_counts()
        except EngineError as error:
            self.problems.append(str(error))
            return None

    def note(self, answers: Sequence[Answer]) -> None:
        self.problems.extend(answer.error for answer in answers if answer.error is not None)

    def answers_nothing(self) -> Exception:
        found = f"all requests failed: {self.problems[-1]}" if self.problems else "no prompts"
        what = f"the {self.name} engine does not answer the prompts"
        return EngineError.build(what, who="specplug audit", found=found)


def _material(opened: _OpenSide, texts: Sequence[str], max_tokens: int) -> Material:
    """Answer the prompts, and return those that were answered; the others are problems."""
    prompts: list[tuple[str, tuple[int, ...]]] = []
    for text in texts:
        try:
            prompts.append((text, opened.side.tokenize(text)))
        except EngineError as error:
            opened.problems.append(str(error))
    answers = opened.answers("prompts", [Probe(prompt=prompt, max_tokens=max_tokens) for _, prompt in prompts])
    opened.note(answers)
    known = [(text, ids, found) for (text, ids), found in zip(prompts, answers, strict=True) if found.error is None]
    if not known:
        raise opened.answers_nothing()
    named, ids, greedy = zip(*known, strict=True)
    return Material(ids, named, greedy, max_tokens)


def _control(opened: _OpenSide, material: Material) -> ControlAnswers:
    """Answer the prompts together, two at a time if not more, and alone, and measure how far the two differ.

    A prompt that fails is a problem, and the audited engine's own answer stands for the control's.
    """
    for top_logprobs in (TOP_LOGPROBS, 0):  # some servers give no log-probabilities
        probes = [
            Probe(prompt=it, max_tokens=material.max_tokens, top_logprobs=top_logprobs) for it in material.prompts
        ]
        answers = opened.answers("prompts", probes, together=max(2, opened.together))
        if not all(answer.error for answer in answers):
            break
    alone = opened.answers("prompts alone", probes, together=1)
    opened.note([*answers, *alone])
    known = [number for number, pair in enumerate(zip(answers, alone, strict=True)) if not any(a.error for a in pair)]
    if not known:
        raise opened.answers_nothing()
    batched = [replace(answer, top_logprobs=()) for answer in material.greedy]
    for number in known:
        batched[number] = answers[number]
    measured = noise([answers[number] for number in known], [alone[number] for number in known])
    return ControlAnswers(tuple(batched), *measured)


def _judge(
    opened: _OpenSide,
    check: Check,
    answers: Sequence[Answer],
    drafts: DraftCounts | None,
    material: Material,
    control: ControlAnswers,
) -> Finding:
    finding = check_answers(check.name, answers, "the audited engine")
    if finding is None:
        expected = opened.answers(check.name, check.control_probes(material, answers, control))
        finding = check_answers(check.name, expected, "the control")
    if finding is None:
        finding = check.judge(material, answers, expected, control)
    return finding.with_drafts(drafts)


def _difference(after: DraftCounts | None, before: DraftCounts | None) -> DraftCounts | None:
    return None if after is None or before is None else after - before
