"""Execution of an audit: probes to the audited engine, then to the control, then the judgement of each check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from specplug.audit.check import Check
from specplug.audit.differences import noise
from specplug.audit.finding import MOST_EXAMPLES, Finding, Status, unanswered
from specplug.audit.probe import TOP_LOGPROBS, Answer, Control, DraftCounts, Material, Probe, Side
from specplug.errors import EngineError

Open = Callable[[], AbstractContextManager[Side]]
"""Starts or connects a side; the two sides of an audit are never open at the same time."""

Progress = Callable[[str, int], Callable[[], None]]
"""Called with a title and a number of probes; returns what is called after each probe."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of an audit.

    Attributes:
        audited, control: the two engines, each in one line.
        drafts: draft tokens decided during the audit; None if the audited engine does not report them.
    """

    audited: str
    control: str
    findings: tuple[Finding, ...]
    drafts: DraftCounts | None

    @property
    def passed(self) -> bool:
        """Return whether no check failed or went unproven, and at least one passed."""
        statuses = {finding.status for finding in self.findings}
        return Status.PASSED in statuses and not statuses & {Status.FAILED, Status.UNPROVEN}

    @property
    def failed(self) -> bool:
        """Return whether a check failed."""
        return any(finding.status is Status.FAILED for finding in self.findings)

    @property
    def not_run(self) -> tuple[str, ...]:
        """Return the names of the checks that could not run."""
        return tuple(finding.check for finding in self.findings if finding.status is Status.NOT_RUN)

    def as_dict(self) -> dict[str, Any]:
        """Return the results ready for JSON."""
        findings = [finding.as_dict() for finding in self.findings]
        return {**asdict(self), "passed": self.passed, "failed": self.failed, "findings": findings}


@dataclass(frozen=True, slots=True)
class _Answered:
    """The audited engine's answers to one check's probes."""

    check: Check
    answers: tuple[Answer, ...]
    drafts: DraftCounts | None


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
    """Audit an engine.

    Args:
        audited: the engine that speculates.
        control: the same engine without speculation.
        texts: prompts.
        checks: what to compare.
        max_tokens: most tokens of an answer to a prompt.
        together: most requests at a time.
        progress: reports progress.
        fields: specplug fields of every request to the audited engine.

    Raises:
        EngineError: an engine does not start or answer.
    """
    problems: list[str] = []
    with audited() as side:
        name = side.describe()
        counts = partial(_counts, side, problems)
        began = counts()
        material = _material(side, texts, max_tokens, fields or {}, together, progress, problems)
        ask = partial(_ask, side, counts, material=material, fields=fields or {}, together=together, progress=progress)
        collected = [ask(check, first=began) for check in checks]
        total = _difference(counts(), began)
    with control() as side:
        described = side.describe()
        own = _control(side, material, together, progress, problems)
        findings = [_judge(side, one, material, own, together, progress) for one in collected]
    if problems:
        failed = f"{len(problems)} requests for prompts or counts had no answer; they are compared with nothing"
        findings.insert(0, Finding("answers", Status.FAILED, failed, tuple(dict.fromkeys(problems))[:MOST_EXAMPLES]))
    return Report(name, described, tuple(findings), total)


def _material(
    side: Side,
    texts: Sequence[str],
    max_tokens: int,
    fields: Mapping[str, Any],
    together: int,
    progress: Progress,
    problems: list[str],
) -> Material:
    """Answer the prompts, and return those that were answered; the others are `problems`."""
    prompts: list[tuple[str, tuple[int, ...]]] = []
    for text in texts:
        try:
            prompts.append((text, side.tokenize(text)))
        except EngineError as error:
            problems.append(str(error))
    probes = [Probe(prompt=prompt, max_tokens=max_tokens, fields=fields) for _, prompt in prompts]
    answers = side.answer(probes, together, progress("audited: prompts", len(probes)))
    problems += [answer.error for answer in answers if answer.error is not None]
    known = [(text, ids, found) for (text, ids), found in zip(prompts, answers, strict=True) if found.error is None]
    if not known:
        raise _unanswered("the audited", problems)
    named, ids, greedy = zip(*known, strict=True)
    return Material(ids, named, greedy, max_tokens)


def _counts(side: Side, problems: list[str]) -> DraftCounts | None:
    try:
        return side.draft_counts()
    except EngineError as error:
        problems.append(str(error))
        return None


def _ask(
    side: Side,
    counts: Callable[[], DraftCounts | None],
    check: Check,
    *,
    material: Material,
    fields: Mapping[str, Any],
    together: int,
    progress: Progress,
    first: DraftCounts | None,
) -> _Answered:
    """Send a check's probes; the first round of greedy prompts counts for the check of that name."""
    before = first if check.name == "greedy" else counts()
    probes = [replace(probe, fields=fields) for probe in check.probes(material)]
    answers = side.answer(probes, together, progress(f"audited: {check.name}", len(probes)))
    return _Answered(check, tuple(answers), _difference(counts(), before))


def _control(side: Side, material: Material, together: int, progress: Progress, problems: list[str]) -> Control:
    """Answer the prompts together and alone, and measure how far the two differ.

    A prompt that fails is added to `problems`, and the audited engine's own answer stands for the control's.
    """
    probes = _control_prompts(material, TOP_LOGPROBS)
    answers = side.answer(probes, together, progress("control: prompts", len(probes)))
    if all(answer.error for answer in answers):  # no log-probabilities
        probes = _control_prompts(material, 0)
        answers = side.answer(probes, together, progress("control: prompts", len(probes)))
    alone = side.answer(probes, 1, progress("control: prompts alone", len(probes)))
    problems += [answer.error for answer in (*answers, *alone) if answer.error is not None]
    known = [number for number, pair in enumerate(zip(answers, alone, strict=True)) if not any(a.error for a in pair)]
    if not known:
        raise _unanswered("the control", problems)
    batched = [replace(answer, top_logprobs=()) for answer in material.greedy]
    for number in known:
        batched[number] = answers[number]
    return Control(tuple(batched), *noise([answers[number] for number in known], [alone[number] for number in known]))


def _control_prompts(material: Material, top_logprobs: int) -> list[Probe]:
    return [
        Probe(prompt=prompt, max_tokens=material.max_tokens, top_logprobs=top_logprobs) for prompt in material.prompts
    ]


def _judge(
    side: Side, one: _Answered, material: Material, control: Control, together: int, progress: Progress
) -> Finding:
    """Send a check's probes to the control, and judge."""
    check = one.check
    refused = unanswered(check.name, one.answers, "the audited engine")
    if refused is not None:
        return refused.with_drafts(one.drafts)
    probes = check.control_probes(material, one.answers, control)
    expected = side.answer(probes, together, progress(f"control: {check.name}", len(probes)))
    refused = unanswered(check.name, tuple(expected), "the control")
    if refused is not None:
        return refused.with_drafts(one.drafts)
    return check.judge(material, one.answers, expected, control).with_drafts(one.drafts)


def _unanswered(who: str, problems: Sequence[str]) -> Exception:
    found = f"all requests failed: {problems[-1]}" if problems else "no prompts"
    return EngineError.build(f"{who} engine does not answer the prompts", who="specplug audit", found=found)


def _difference(after: DraftCounts | None, before: DraftCounts | None) -> DraftCounts | None:
    return None if after is None or before is None else after - before
