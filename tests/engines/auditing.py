"""Audits of engines of the pool, by `specplug.audit`, without the start of another engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from specplug.audit.formats import Structured
from specplug.audit.probe import Check, DraftCounts, Probe
from specplug.audit.run import Report, run
from specplug.audit.texts import Greedy, Logprobs, Stops
from specplug.client.answers import Answer
from specplug.demo.tasks import KINDS, make_tasks
from tests.engines.engines import Engine
from tests.engines.plain import ids

OPEN_FIRST = sorted(KINDS, key="code".__ne__)
TEXTS = [task.prompt for kind in OPEN_FIRST for task in make_tasks(kind, "held-out", 2, seed=9, max_chars=300)]


class EngineSide:
    """A `Side` over an engine of the pool, whose folder has a module `auditing` with `answer` and `counts`."""

    def __init__(self, engine: Engine, *, drafts: bool) -> None:
        self._engine, self._drafts = engine, drafts

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(ids(text))

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        given = [asdict(probe) for probe in probes]
        parts = [given[first : first + together] for first in range(0, len(given), together)]
        return [_answer(one) for part in parts for one in self._engine.call("auditing.answer", probes=part)]

    def draft_counts(self) -> DraftCounts | None:
        return DraftCounts(*self._engine.call("auditing.counts")) if self._drafts else None

    def describe(self) -> str:
        return self._engine.name


def audit(audited: Engine, control: Engine, *checks: Check, texts: Sequence[str] = TEXTS, together: int = 8) -> Report:
    """Audit an engine by another one; without named checks those that need few requests."""

    @contextmanager
    def side(engine: Engine) -> Iterator[EngineSide]:
        yield EngineSide(engine, drafts=engine is audited)

    return run(
        audited=lambda: side(audited),
        control=lambda: side(control),
        texts=texts,
        checks=checks or (Greedy(), Stops(), Logprobs(), Structured()),
        max_tokens=32,
        together=together,
        progress=lambda title, total: lambda: None,
    )


def statuses(report: Report) -> dict[str, str]:
    """Return the status of each check."""
    return {finding.check: str(finding.status) for finding in report.findings}


def fields_of(probe: dict[str, Any]) -> dict[str, Any]:
    """Return the specplug fields of a probe; runs in an engine's process."""
    expected = {"references": [{"token_ids": list(probe["expected"])}]} if probe["expected"] else {}
    return {**expected, **probe["fields"]}


def _answer(found: dict[str, Any]) -> Answer:
    tops = tuple({int(token): logprob for token, logprob in top.items()} for top in found["top_logprobs"])
    return Answer(
        token_ids=tuple(found["token_ids"]),
        text=found["text"],
        finish_reason=found["finish_reason"],
        top_logprobs=tops,
    )
