"""Audits of engines of the pool, by `specplug.audit`, without the start of another engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from specplug.audit.check import Check
from specplug.audit.greedy import Greedy
from specplug.audit.logprobs import Logprobs
from specplug.audit.probe import Answer, DraftCounts, Probe
from specplug.audit.run import Report, run
from specplug.audit.stops import Stops
from specplug.audit.structured import Structured
from specplug.audit.text_engine import TextEngineSide
from specplug.demo.tasks import KINDS, make_tasks
from specplug.plugins.engines import TextEngine
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
        if not probes:
            return []
        found = self._engine.call("auditing.answer", probes=[asdict(probe) for probe in probes], together=together)
        return [_answer(one) for one in found]

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


def answers_of(engine: TextEngine, probes: list[dict[str, Any]], together: int) -> list[dict[str, Any]]:
    """Answer probes inside an engine's process; JSON has no integers as keys, so log-probabilities become pairs."""
    given = [Probe(**{**probe, "prompt": tuple(probe["prompt"])}) for probe in probes]
    found = TextEngineSide(engine, drafts=False).answer(given, together, lambda: None)
    return [{**asdict(one), "top_logprobs": [[*top.items()] for top in one.top_logprobs]} for one in found]


def _answer(found: dict[str, Any]) -> Answer:
    tops = tuple({int(token): logprob for token, logprob in top} for top in found["top_logprobs"])
    return Answer(**{**found, "token_ids": tuple(found["token_ids"]), "top_logprobs": tops})
