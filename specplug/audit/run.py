"""Execution of an audit: probes to the audited engine, then to the control, then the judgement of each check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from specplug.audit.check import Check
from specplug.audit.differences import noise
from specplug.audit.finding import Finding, Status, unanswered
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
    with audited() as side:
        name = side.describe()
        began = side.draft_counts()
        prompts = tuple(side.tokenize(text) for text in texts)
        probes = [Probe(prompt=prompt, max_tokens=max_tokens, fields=fields or {}) for prompt in prompts]
        greedy = _answered(side.answer(probes, together, progress("audited: prompts", len(probes))), "the audited")
        material = Material(prompts, tuple(texts), greedy, max_tokens)
        ask = partial(_ask, side, material=material, fields=fields or {}, together=together, progress=progress)
        collected = [ask(check, first=began) for check in checks]
        total = _difference(side.draft_counts(), began)
    with control() as side:
        described = side.describe()
        own = _control(side, material, together, progress)
        findings = tuple(_judge(side, one, material, own, together, progress) for one in collected)
    return Report(name, described, findings, total)


def _ask(
    side: Side,
    check: Check,
    *,
    material: Material,
    fields: Mapping[str, Any],
    together: int,
    progress: Progress,
    first: DraftCounts | None,
) -> _Answered:
    """Send a check's probes; the first round of greedy prompts counts for the check of that name."""
    before = first if check.name == "greedy" else side.draft_counts()
    probes = [replace(probe, fields=fields) for probe in check.probes(material)]
    answers = side.answer(probes, together, progress(f"audited: {check.name}", len(probes)))
    return _Answered(check, tuple(answers), _difference(side.draft_counts(), before))


def _control(side: Side, material: Material, together: int, progress: Progress) -> Control:
    """Answer the prompts together and alone, and measure how far the two differ."""
    probes = _control_prompts(material, TOP_LOGPROBS)
    answers = side.answer(probes, together, progress("control: prompts", len(probes)))
    if all(answer.error for answer in answers):  # no log-probabilities
        probes = _control_prompts(material, 0)
        answers = side.answer(probes, together, progress("control: prompts", len(probes)))
    batched = _answered(answers, "the control")
    alone = _answered(side.answer(probes, 1, progress("control: prompts alone", len(probes))), "the control")
    return Control(batched, *noise(batched, alone))


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


def _answered(answers: Sequence[Answer], who: str) -> tuple[Answer, ...]:
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        raise EngineError.build(
            f"{who} engine does not answer the prompts",
            who="specplug audit",
            found=f"{len(errors)} of {len(answers)} requests failed: {errors[0]}",
        )
    return tuple(answers)


def _difference(after: DraftCounts | None, before: DraftCounts | None) -> DraftCounts | None:
    return None if after is None or before is None else after - before
