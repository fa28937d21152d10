"""Audits of engines of the pool, by `specplug.audit`, without the start of another engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specplug.audit.formats import Structured
from specplug.audit.probe import Check, DraftCounts, Probe
from specplug.audit.run import Report, run
from specplug.audit.texts import Greedy, Logprobs, Stops
from specplug.client.answers import Answer
from specplug.demo.tasks import KINDS, make_tasks
from tests.engines.plain import ids
from tests.engines.suites.served import Params, Served

OPEN_FIRST = sorted(KINDS, key="code".__ne__)
TEXTS = [task.prompt for kind in OPEN_FIRST for task in make_tasks(kind, "held-out", 2, seed=9, max_chars=300)]


class EngineSide:
    """A `Side` over an engine of the suites."""

    def __init__(self, served: Served, *, drafts: bool) -> None:
        self._served, self._drafts = served, drafts

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(ids(text))

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        parts = [probes[first : first + together] for first in range(0, len(probes), together)]
        return [
            _answer(one)
            for part in parts
            for one in self._served.generate([probe.prompt for probe in part], [_params(probe) for probe in part])
        ]

    def draft_counts(self) -> DraftCounts | None:
        if not self._drafts:
            return None
        total = self._served.counts()["total"]
        return DraftCounts(total["accepted"], total["rejected"])

    def describe(self) -> str:
        return self._served.engine.name


def audit(audited: Served, control: Served, *checks: Check, texts: Sequence[str] = TEXTS, together: int = 8) -> Report:
    """Audit an engine by another one; without named checks those that need few requests."""

    @contextmanager
    def side(served: Served) -> Iterator[EngineSide]:
        yield EngineSide(served, drafts=served is audited)

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


def _params(probe: Probe) -> Params:
    expected = {"references": [{"token_ids": list(probe.expected)}]} if probe.expected else {}
    return {
        **{name: getattr(probe, name) for name in ("max_tokens", "temperature", "top_k", "seed")},
        "stop": list(probe.stop),
        "logprobs": probe.top_logprobs or None,
        "structured_outputs": None if probe.json_schema is None else {"json": probe.json_schema},
        "specplug": {**expected, **probe.fields},
    }


def _answer(found: dict[str, Any]) -> Answer:
    tops = tuple({int(token): logprob for token, logprob in top.items()} for top in found.get("logprobs", ()))
    return Answer(
        token_ids=tuple(found["token_ids"]),
        text=found["text"],
        finish_reason=found["finish_reason"],
        top_logprobs=tops,
    )
