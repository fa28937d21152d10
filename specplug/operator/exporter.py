"""specplug's metrics on an engine server's /metrics, without any flag.

The API process serves /metrics and counts nothing itself.  When it is scraped it asks the engines, whose workers read
their counters back then and only then.  A server whose engines do not answer in time exports what they said last.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from specplug.metrics import MetricsSnapshot, SourceCounts
from specplug.operator.prometheus import SpecCollector

logger = logging.getLogger("specplug")

Ask = Callable[[], Awaitable[list[dict[str, Any]]]]

PATIENCE = 1.0
"""Seconds that a scrape waits for the engines' answer."""

_GAUGES = {
    "mode": ("specplug_mode", "1 while the operator lets the server speculate, else 0."),
    "ceiling": ("specplug_ceiling_tokens", "Most draft tokens per request and step that the operator allows."),
    "age": ("specplug_snapshot_age_seconds", "Seconds since the engine was asked for these figures."),
}


@functools.cache
def exporter() -> EngineCollector:
    """Return this process's collector, registered where the server's /metrics finds it.

    Where several processes count, what is exported lies in files that they share, and collectors are not asked.  Ours
    joins the one that reads those files: whichever process is scraped asks all engines, so the answers do not depend
    on it.
    """
    collector = EngineCollector()
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        REGISTRY.register(collector)
        return collector
    from prometheus_client.multiprocess import MultiProcessCollector

    from_files: Callable[[Any], Iterable[Metric]] = MultiProcessCollector.collect

    @functools.wraps(from_files)
    def collect(self: Any) -> Iterator[Metric]:
        yield from from_files(self)
        yield from collector.collect()

    MultiProcessCollector.collect = collect  # type: ignore[method-assign]
    return collector


class EngineCollector(Collector):
    """Makes metric families of what the engines say, each sample with the label ``engine``."""

    def __init__(self) -> None:
        self._sources: list[_Engines] = []

    def watch(self, ask: Ask) -> None:
        """Export what engines count: `ask` makes the coroutine that returns one status of each engine.

        Called in the event loop that the question is to be asked in; without a running one nobody can ask.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._sources = [source for source in self._sources if source.is_open()] + [_Engines(ask, loop)]

    async def refresh(self) -> None:
        """Ask before a scrape that runs in the event loop itself, where `collect` cannot wait for the answers."""
        await asyncio.gather(*[source.refresh(PATIENCE) for source in self._sources if source.is_open()])

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registration asks nobody."""
        return [*SpecCollector(_never).describe(), *_gauges().values()]

    def collect(self) -> Iterator[Metric]:
        """Return the families with the engines' newest counts."""
        families = {family.name: family for family in self.describe()}
        for source in list(self._sources):
            for report in source.newest(PATIENCE):
                _add(families, report)
        yield from families.values()


@dataclass(frozen=True, slots=True)
class _Report:
    """What one engine said, and when (`time.monotonic`)."""

    status: dict[str, Any]
    at: float


class _Engines:
    """Asks one client's engines, one question at a time.

    Args:
        ask: makes the coroutine of one question, to be run in `loop`.
        loop: the event loop that the client lives in.
    """

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._ask, self._loop = ask, loop
        self._lock = threading.Lock()
        self._question: Future[None] | None = None
        self._reports: list[_Report] = []
        self._failed = False
        self._requested_early = False

    def is_open(self) -> bool:
        """Whether the engines can still be asked."""
        return not self._loop.is_closed()

    async def refresh(self, patience: float) -> None:
        """Ask for the next scrape in the event loop, and wait for the answers up to `patience` seconds."""
        self._requested_early = True
        await asyncio.wait([asyncio.wrap_future(self._asking())], timeout=patience)

    def newest(self, patience: float) -> list[_Report]:
        """Ask, and return the answers, or those before if they take longer than `patience` seconds.

        In the event loop's own thread nobody can wait for an answer: the newest that has come is returned.
        """
        if not self.is_open():
            return []
        if _in_loop():
            if not self._requested_early:
                self._asking()
            self._requested_early = False
            return self._reports
        try:
            self._asking().result(patience)
        except TimeoutError:
            logger.debug("/metrics: the engines have not answered within %s s", patience)
        return self._reports

    def _asking(self) -> Future[None]:
        """Return the question that is open, or ask one."""
        with self._lock:
            if self._question is None or self._question.done():
                self._question = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
            return self._question

    async def _refresh(self) -> None:
        try:
            status = await self._ask()
        except Exception as error:
            if not self._failed:
                logger.warning("/metrics: the engines' figures cannot be had: %s: %s", type(error).__name__, error)
            self._failed = True
        else:
            now = time.monotonic()
            self._reports, self._failed = [_Report(one, now) for one in status], False


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _add(families: dict[str, Metric], report: _Report) -> None:
    """Add one engine's samples."""
    status, engine = report.status, {"engine": str(report.status["engine"])}
    counting = [worker for worker in status["workers"] if worker["drafts"]]
    for worker in counting[:1]:  # one rank counts for all
        snapshot = snapshot_of(worker["metrics"], status["scheduler"]["faults"])
        for family in SpecCollector(lambda snapshot=snapshot: snapshot).collect():  # type: ignore[misc]
            families[family.name].samples += [_labelled(sample, engine) for sample in family.samples]
    state, widest = status["scheduler"]["control"], status["max_draft_length"]
    ceiling = widest if state["ceiling"] is None else min(state["ceiling"], widest)
    values = {"mode": state["mode"] == "on", "ceiling": ceiling, "age": time.monotonic() - report.at}
    for key, gauge in _gauges().items():
        gauge.add_metric([engine["engine"]], float(values[key]))
        families[gauge.name].samples += gauge.samples


def snapshot_of(status: dict[str, Any], more_faults: dict[str, dict[str, int]]) -> MetricsSnapshot:
    """Rebuild a snapshot from its `as_dict`, with the scheduler's faults beside the worker's."""
    names = [field.name for field in fields(SourceCounts)]
    by_source = {}
    for source, counts in status["by_source"].items():
        values: dict[str, Any] = {name: tuple(counts[name]) if name.endswith("_at") else counts[name] for name in names}
        by_source[source] = SourceCounts(**values)
    faults = {name: dict(kinds) for name, kinds in status["faults"].items()}
    for name, kinds in more_faults.items():
        mine = faults.setdefault(name, {})
        for kind, count in kinds.items():
            mine[kind] = mine.get(kind, 0) + count
    return MetricsSnapshot(by_source, faults)


def _labelled(sample: Sample, labels: dict[str, str]) -> Sample:
    return sample._replace(labels={**sample.labels, **labels})


def _gauges() -> dict[str, GaugeMetricFamily]:
    return {key: GaugeMetricFamily(*text, labels=["engine"]) for key, text in _GAUGES.items()}


def _never() -> MetricsSnapshot:
    raise AssertionError("describing reads nothing")
