"""A scrape of /metrics with engines that answer, answer late, fail or are gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from specplug.faults import KINDS
from specplug.operator import exporter
from specplug.operator.exporter import EngineCollector
from specplug.operator.status import REASONS
from tests.test_metrics import STEP, recorded

OWN = {"source": "own text"}


class Engines:
    """Stands in for engines; returns the statuses that it was given, in the caller's event loop.

    Attributes:
        stated: by engine, its status; an exception is raised.
        gate: answers wait for it.
    """

    def __init__(self, *stated: Any) -> None:
        self.stated = list(stated)
        self.gate = asyncio.Event()
        self.gate.set()
        self.requested = 0

    async def ask(self) -> list[Any]:
        self.requested += 1
        await self.gate.wait()
        for stated in self.stated:
            if isinstance(stated, Exception):
                raise stated
        return list(self.stated)


def status(engine: int = 0, steps: int = 1, ceiling: int | None = None, faults: Any = None, report: Any = None) -> Any:
    """Return an engine's status, as far as a scrape reads it; `report` stands in for what its plug-ins report."""
    metrics = recorded(*[STEP] * steps)
    metrics.count_fault("ngram", "late")
    store = {"tenants": {"acme": {"handbook": 7, "wiki": 4}, "": {}}, "problems": ["torn"]}
    scheduler = {
        "control": {"mode": "off" if ceiling == 0 else "on", "ceiling": ceiling},
        "steps": steps,
        "plan": {"draft_length": 5},
        "policy": {"why": "drafts gain", "draft_length": 5, "speed_up": 1.4} if report is None else report,
        "faults": faults or {},
    }
    drafting = {
        "rank": 0,
        "drafts": True,
        "proposers": ["ngram"],
        "details": {"retrieval": store if report is None else report},
        "metrics": metrics.snapshot().as_dict(),
    }
    workers = [{"rank": 1, "drafts": False}, drafting]
    return {"engine": engine, "max_draft_length": 8, "scheduler": scheduler, "workers": workers}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop

    async def finish() -> None:
        """Let the last scrape's question be answered."""
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest)

    asyncio.run_coroutine_threadsafe(finish(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


Watch = Callable[..., tuple[Engines, CollectorRegistry]]


@pytest.fixture
def watch(loop, monkeypatch) -> Watch:
    """Export engines with the given statuses; scrapes wait `patience` seconds for them."""

    def start(*stated: Any, patience: float = 20.0, pause: float = 0.0) -> tuple[Engines, CollectorRegistry]:
        monkeypatch.setattr(exporter, "PATIENCE", patience)
        monkeypatch.setattr(exporter, "PAUSE", pause)
        collector = EngineCollector()
        registry = CollectorRegistry()
        registry.register(collector)

        async def begin() -> Engines:
            engines = Engines(*stated)
            collector.watch(engines.ask)
            return engines

        return asyncio.run_coroutine_threadsafe(begin(), loop).result(), registry

    return start


def sample(registry: CollectorRegistry, name: str, engine: int = 0, **labels: str) -> float | None:
    return registry.get_sample_value(f"specplug_{name}", {"engine": str(engine), **labels})


def emitted(registry: CollectorRegistry, engine: int = 0) -> float | None:
    return sample(registry, "emitted_tokens_total", engine, **OWN)


def expected(steps: int) -> int:
    return recorded(*[STEP] * steps).snapshot().by_source["own text"].emitted


def test_nobody_is_requested_before_the_first_scrape(watch):
    engines, registry = watch(status())
    assert engines.requested == 0
    assert emitted(registry) == expected(1) > 0
    assert engines.requested == 1


def test_every_scrape_asks_anew(watch):
    engines, registry = watch(status(steps=1))
    emitted(registry)
    engines.stated[0] = status(steps=2)
    assert emitted(registry) == expected(2) != expected(1)


def test_scrapes_without_a_pause_do_not_keep_the_engines_busy(watch):
    """Anybody may scrape, and an engine answers between two steps."""
    engines, registry = watch(status(), pause=0.2)
    begin = time.monotonic()
    for _ in range(4):
        assert emitted(registry) == expected(1), "late, but current"
    assert engines.requested == 4
    assert time.monotonic() - begin >= 3 * 0.2


def test_each_engine_has_its_label_and_each_family_is_reported_once_and_without_names(watch):
    _, registry = watch(status(0, steps=1, ceiling=3), status(1, steps=3, ceiling=0))
    assert (emitted(registry, 0), emitted(registry, 1)) == (expected(1), expected(3))
    for name, values in {"mode": [1, 0], "ceiling_tokens": [3, 0]}.items():
        assert [sample(registry, name, engine) for engine in (0, 1)] == values
    text = generate_latest(registry).decode()
    assert text.count("# TYPE specplug_emitted_tokens_total counter") == 1
    assert text.count("# TYPE specplug_mode gauge") == 1
    assert not any(name in text for name in ("acme", "handbook", "wiki", "torn"))


NGRAM = {"plugin": "ngram"}
FAULTS = {"policy fixed": {"raised": 2}, "ngram": {"late": 1}}
ODD_REPORTS: list[dict[str, Any]] = [{}, {"error": "x"}, {"draft_length": "many"}, {"speed_up": 2.0}]

SHOWN = [
    ({}, "ceiling_tokens", {}, 8),  # never above the server's draft length
    ({"ceiling": 3}, "ceiling_tokens", {}, 3),
    ({"ceiling": 99}, "ceiling_tokens", {}, 8),
    ({}, "planned_tokens", {}, 5),
    ({}, "predicted_speedup", {}, 1.4),
    ({}, "corpora", {}, 2),
    ({}, "corpus_tokens", {}, 11),
    ({}, "corpus_problems", {}, 1),
    *(({}, "plan_reason", {"reason": each}, each == "drafting") for each in REASONS),
    # A plug-in's faults are counted from 0, so that the first is an increase, and of scheduler and worker together.
    *(({}, "faults_total", {**NGRAM, "kind": kind}, kind == "late") for kind in KINDS),
    ({"faults": FAULTS}, "faults_total", {"plugin": "policy fixed", "kind": "raised"}, 2),
    ({"faults": FAULTS}, "faults_total", {**NGRAM, "kind": "late"}, 2),
    # Plug-ins may report something else.
    *(({"report": report}, "planned_tokens", {}, 5) for report in ODD_REPORTS),
    *(({"report": report}, name, {}, None) for report in ODD_REPORTS for name in ("predicted_speedup", "corpora")),
]


@pytest.mark.parametrize(("given", "name", "labels", "value"), SHOWN)
def test_a_status_becomes_samples(watch, given, name, labels, value):
    _, registry = watch(status(**given))
    assert sample(registry, name, **labels) == value
    assert emitted(registry) == expected(1)


def test_engines_that_are_late_are_shown_as_they_were_and_requested_once(watch, loop, monkeypatch):
    engines, registry = watch(status(steps=1))
    emitted(registry)
    engines.stated[0] = status(steps=2)
    monkeypatch.setattr(exporter, "PATIENCE", 0.01)
    loop.call_soon_threadsafe(engines.gate.clear)
    assert [emitted(registry), emitted(registry)] == [expected(1)] * 2
    assert engines.requested == 2  # the second question is still open
    age = sample(registry, "snapshot_age_seconds")
    assert age is not None
    assert age > 0
    monkeypatch.setattr(exporter, "PATIENCE", 20.0)
    loop.call_soon_threadsafe(engines.gate.set)
    assert emitted(registry) == expected(2)


def test_a_failure_is_reported_once_and_costs_freshness_only(watch, caplog):
    engines, registry = watch(status(steps=1))
    emitted(registry)
    engines.stated[0] = RuntimeError("engine core is dead")
    with caplog.at_level(logging.WARNING, logger="specplug"):
        assert [emitted(registry), emitted(registry)] == [expected(1)] * 2
    (record,) = caplog.records
    assert "RuntimeError: engine core is dead" in record.getMessage()
    engines.stated[0] = status(steps=2)
    assert emitted(registry) == expected(2)


def in_loop(loop: asyncio.AbstractEventLoop, registry: CollectorRegistry, *, refresh: bool) -> float | None:
    """Scrape in the event loop, where a scrape that waited would block the loop that the answer needs."""

    async def scrape() -> float | None:
        (collector,) = registry._collector_to_names
        if refresh:
            await collector.refresh()
        return emitted(registry)

    return asyncio.run_coroutine_threadsafe(scrape(), loop).result(20)


def test_in_the_event_loop_a_scrape_shows_the_answer_before(watch, loop):
    engines, registry = watch(status(steps=1))

    async def settle() -> None:
        while engines.requested == 0:
            await asyncio.sleep(0)
        for _ in range(100):  # far more turns of the loop than an answer takes
            await asyncio.sleep(0)

    assert in_loop(loop, registry, refresh=False) is None
    asyncio.run_coroutine_threadsafe(settle(), loop).result(20)
    assert in_loop(loop, registry, refresh=False) == expected(1)


def test_a_scrape_in_the_event_loop_may_have_the_engines_requested_first(watch, loop):
    engines, registry = watch(status(steps=1))
    for steps in (1, 2):
        engines.stated[0] = status(steps=steps)
        loop.call_soon_threadsafe(engines.gate.clear)
        loop.call_soon_threadsafe(loop.call_later, 0.05, engines.gate.set)  # answers take their time
        assert in_loop(loop, registry, refresh=True) == expected(steps)
    assert engines.requested == 2  # once per scrape


def test_asking_first_waits_as_long_as_a_scrape_does_and_no_longer(watch, loop, monkeypatch):
    engines, registry = watch(status(steps=1), patience=0.01)
    loop.call_soon_threadsafe(engines.gate.clear)
    assert in_loop(loop, registry, refresh=True) is None
    loop.call_soon_threadsafe(engines.gate.set)
    monkeypatch.setattr(exporter, "PATIENCE", 20.0)
    assert in_loop(loop, registry, refresh=True) == expected(1)


def test_without_an_event_loop_nothing_is_watched():
    collector = EngineCollector()
    registry = CollectorRegistry()
    collector.watch(Engines().ask)
    registry.register(collector)
    assert b"specplug_emitted_tokens_total{" not in generate_latest(registry)


def test_an_engine_whose_loop_is_closed_is_gone():
    collector = EngineCollector()
    registry = CollectorRegistry()

    async def begin() -> None:
        collector.watch(Engines(status()).ask)

    asyncio.run(begin())
    registry.register(collector)
    assert emitted(registry) is None


def test_the_counts_of_an_engines_own_drafter_are_the_schedulers(watch):
    reported = status()
    reported["scheduler"] |= {name: reported["workers"][1][name] for name in ("metrics", "proposers", "details")}
    shown, with_workers = (
        {
            (each.name, *each.labels.items()): each.value
            for family in watch(stated)[1].collect()
            for each in family.samples
            if "age" not in each.name
        }
        for stated in ({**reported, "workers": []}, status())
    )
    assert shown == with_workers
    assert any("accepted" in name for name, *_ in shown)
