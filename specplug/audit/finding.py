"""Results of an audit's checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from specplug.audit.probe import Answer, DraftCounts

MOST_EXAMPLES = 5
"""Examples of differences that a result lists."""


class Status(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNPROVEN = "unproven"
    """No difference was found, but no draft was at work that could have made one."""
    NOT_RUN = "not run"
    """The engine cannot do what the check needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        check: the check's name.
        summary: one sentence with its figures.
        examples: what differed, at most `MOST_EXAMPLES` of them.
        figures: the figures for programs.
        drafts: draft tokens that were decided while the check's probes ran; None if the engine does not report them.
    """

    check: str
    status: Status
    summary: str
    examples: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    drafts: DraftCounts | None = None

    def with_drafts(self, drafts: DraftCounts | None) -> Finding:
        """Return the result with its draft counts; a check that passed proves nothing unless a draft was accepted."""
        if self.status is Status.PASSED and not (drafts and drafts.accepted):
            why = "no draft was accepted meanwhile" if drafts else "the engine does not report its drafts"
            summary = f"{self.summary}; {why}"
            return replace(self, drafts=drafts, status=Status.UNPROVEN, summary=summary)
        return replace(self, drafts=drafts)

    def as_dict(self) -> dict[str, Any]:
        """Return the result ready for JSON."""
        return {**asdict(self), "status": str(self.status), "examples": list(self.examples)}


def judged(check: str, failures: list[str], summary: str, **figures: Any) -> Finding:
    """Return a result that failed if there are failures."""
    status = Status.FAILED if failures else Status.PASSED
    return Finding(check, status, summary, tuple(failures[:MOST_EXAMPLES]), figures)


def unanswered(check: str, answers: tuple[Answer, ...], who: str) -> Finding | None:
    """Return a result if probes had no answer: "not run" if all of them were refused by name, else "failed"."""
    errors = [answer.error for answer in answers if answer.error is not None]
    if not errors:
        return None
    status = Status.NOT_RUN if all(answer.refused for answer in answers) else Status.FAILED
    summary = f"{who}: {len(errors)} of {len(answers)} requests had no answer"
    return Finding(check, status, summary, tuple(dict.fromkeys(errors))[:MOST_EXAMPLES])
