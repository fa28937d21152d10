"""Exporter of specplug's metrics on an engine server's /metrics; it needs no flag.

The API process serves /metrics and counts nothing itself.  A scrape requests the engines' status, and only then do
their workers read their counters back.  If the engines do not answer in time, their previous figures are exported.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from specplug.errors import describe
from specplug.faults import KINDS
from specplug.operator.prometheus import add_counts, counters
from specplug.operator.status import REASONS, corpus_totals, counting_parts, decision, reason

logger = logging.getLogger("specplug")

Ask = Callable[[], Awaitable[list[dict[str, Any]]]]

_Report = tuple[dict[str, Any], float]
"""One engine's status, and the time of its arrival (`time.monotonic`)."""

PATIENCE = 1.0
"""Seconds that a scrape waits for the engines to answer."""

PAUSE = 0.1
"""Seconds between two status requests, which take an engine's time; anyone may scrape, and scrapes share a request."""

_GAUGES = {
    "mode": ("specplug_mode", "1 while the operator lets the server speculate, else 0."),
    "ceiling": ("specplug_ceiling_tokens", "Most draft tokens per request and step that the operator allows."),
    "age": ("specplug_snapshot_age_seconds", "Seconds since the engine reported these figures."),
    "planned": ("specplug_planned_tokens", "Most draft tokens per request in the newest plan."),
    "factor": (
        "specplug_predicted_speedup",
        "Tokens per second with drafts over those without, as the policy expects.",
    ),
    "corpora": ("specplug_corpora", "Corpora that the engine drafts from, of all tenants together."),
    "tokens": ("specplug_corpus_tokens", "Tokens of these corpora."),
    "problems": ("specplug_corpus_problems", "Problems of the corpus store, such as damaged files."),
}
_REASON = ("specplug_plan_reason", "1 for the reason why the newest plan has drafts or none, else 0.")


@functools.cache
def exporter() -> EngineCollector:
    """Return this process's collector, registered with the registry that the server's /metrics exports.

    In Prometheus's multiprocess mode the exported values lie in files that the processes share, and other collectors
    are not called.  This collector then extends the one that reads the files: every process requests the status of all
    engines, so a scrape of any process gives the same figures.
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
    """Converts the engines' statuses to metric families; every sample has the label ``engine``."""

    def __init__(self) -> None:
        self._sources: list[_Engines] = []

    def watch(self, ask: Ask) -> None:
        """Export engines' counts; `ask` returns a coroutine that returns one status per engine.

        Call this in the event loop that is to run the coroutine; without a running loop it does nothing.
        """
        if (loop := _running_loop()) is not None:
            self._sources = [source for source in self._sources if source.is_open()] + [_Engines(ask, loop)]

    async def refresh(self) -> None:
        """Request statuses before a scrape that runs in the event loop itself, where `collect` cannot wait for them."""
        await asyncio.gather(*[source.refresh(PATIENCE) for source in self._sources if source.is_open()])

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registration sends no status request."""
        return _families().values()

    def collect(self) -> Iterator[Metric]:
        """Return the families with the engines' newest counts."""
        families = _families()
        for source in list(self._sources):
            for status, arrived in source.newest(PATIENCE):
                _add(families, status, arrived)
        yield from families.values()


class _Engines:
    """Status requests to one client's engines, one request at a time, run in the client's event loop."""

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop
        self._lock = threading.Lock()
        self._question: Future[None] | None = None
        self._reports: list[_Report] = []
        self._failed = False
        self._requested_early = False
        self._next = -math.inf

    def is_open(self) -> bool:
        """Return whether the engines can still be reached."""
        return not self._loop.is_closed()

    async def refresh(self, patience: float) -> None:
        """Request statuses for the next scrape in the event loop; wait up to `patience` seconds for them."""
        self._requested_early = True
        await asyncio.wait([asyncio.wrap_future(self._requested())], timeout=patience)

    def newest(self, patience: float) -> list[_Report]:
        """Request statuses and return them, or the previous ones if they take longer than `patience` seconds.

        The event loop's own thread cannot wait, so there the newest statuses that have arrived are returned.
        """
        if not self.is_open():
            return []
        if _running_loop() is not None:
            if not self._requested_early:
                self._requested()
            self._requested_early = False
            return self._reports
        try:
            self._requested().result(patience)
        except TimeoutError:
            logger.debug("/metrics: the engines have not answered within %s s", patience)
        return self._reports

    def _requested(self) -> Future[None]:
        """Return the pending status request, or start one."""
        with self._lock:
            if self._question is None or self._question.done():
                self._question = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
            return self._question

    async def _refresh(self) -> None:
        await asyncio.sleep(self._next - self._loop.time())
        try:
            status = await self._ask()
        except Exception as error:
            if not self._failed:
                logger.warning("/metrics: cannot get the engines' figures: %s", describe(error))
            self._failed = True
        else:
            now = time.monotonic()
            self._reports = [(one, now) for one in status]
            self._failed = False
        finally:
            self._next = self._loop.time() + PAUSE


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _families() -> dict[str, Any]:
    gauges = {key: GaugeMetricFamily(*text, labels=["engine"]) for key, text in _GAUGES.items()}
    return {**counters("engine"), **gauges, "reason": GaugeMetricFamily(*_REASON, labels=["reason", "engine"])}


def _add(families: dict[str, Any], status: dict[str, Any], arrived: float) -> None:
    """Add one engine's samples."""
    engine = str(status["engine"])
    scheduler = status["scheduler"]
    parts = counting_parts(status)[:1]  # the first rank's counts stand for all ranks
    for part in parts:
        # A counter that is there before the first fault lets queries see its increase.
        known = {name: dict.fromkeys(KINDS, 0) for name in part.get("proposers", ())}
        faults = _sum(_sum(known, part["metrics"]["faults"]), scheduler["faults"])
        add_counts(families, {**part["metrics"], "faults": faults}, engine)
    state = scheduler["control"]
    longest = status["max_draft_length"]
    policy = scheduler["policy"]
    planned = scheduler["plan"]["draft_length"]
    decided = decision(policy)
    values: dict[str, float | None] = {
        "mode": state["mode"] == "on",
        "ceiling": longest if state["ceiling"] is None else min(state["ceiling"], longest),
        "age": time.monotonic() - arrived,
        "planned": planned,
        "factor": None if decided is None else decided.speed_up,
    }
    for part in parts:
        if (totals := corpus_totals(part.get("details", {}))) is not None:
            values |= totals._asdict()
    for key, value in values.items():
        if value is not None:
            families[key].add_metric([engine], float(value))
    present = reason(scheduler["steps"], state["ceiling"], planned, policy)
    for each in REASONS:
        families["reason"].add_metric([each, engine], float(each == present))


def _sum(one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]) -> dict[str, Counter[str]]:
    """Return the sums of counts of faults, by plug-in and kind."""
    total = {name: Counter(kinds) for name, kinds in one.items()}
    for name, kinds in other.items():
        total.setdefault(name, Counter()).update(kinds)
    return total
