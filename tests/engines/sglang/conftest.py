"""One engine per configuration and session.  An engine starts when a test first calls it; see `Engine.call`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.eagle import write_head
from tests.engines.engines import Adapter
from tests.engines.launch import TINY
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SERVED, SGLANG_CPU, configuration
from tests.engines.suites.served import Served

# The stand-in for a kernel that `test_sampling` calls in this process, from where an engine's processes find it.
sys.path.append(str(SGLANG_CPU))
importlib.import_module("sgl_kernel.sampling")
sys.path.remove(str(SGLANG_CPU))  # what is installed stays what transformers finds


SLOW = (
    ("test_greedy", ", sync"),
    ("test_sampling", "trees, sync"),
    *((f"test_{name}", "[sync") for name in ("fields", "grammar", "lifecycle", "recurrent")),
)
NEIGHBOURS = (
    *("test_engine_events", "test_lifecycle", "TestLifecycle", "TestVisible"),
    *("TestFeatures", "test_fields", "test_intake", "TestGrammar", "test_grammar_states"),
)
"""Files and classes of tests that share engines, which then need not start again."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what is of the tests themselves, and what repeats, a step at a time, what runs overlapped.

    Tests of `NEIGHBOURS` come last.
    """
    places = {name: place for place, name in enumerate(NEIGHBOURS, start=1)}
    items.sort(key=lambda item: places.get(getattr(item.cls, "__name__", ""), places.get(item.path.stem, 0)))
    for item in items:
        if any(item.path.stem == file and kind in item.name for file, kind in SLOW):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def adapter() -> Adapter:
    return Adapter(Engine, configuration, SERVED)


@pytest.fixture(scope="session")
def baseline(engine: Callable[..., Engine]) -> Engine:
    """SGLang without speculation."""
    return engine(name="baseline")


@pytest.fixture(scope="session", params=["overlap", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    """The schedule: overlapped, or a step at a time."""
    return str(request.param)


@pytest.fixture(scope="session")
def start(kind: str, engine: Callable[..., Engine]) -> Callable[..., Served]:
    """Make an engine for a suite; see `tests.engines.suites.served`."""

    def started(settings: dict[str, Any] | None, *, name: str, **how: Any) -> Served:
        own = {"overlap": kind == "overlap", "name": f"{name}, {kind}", **how}
        if settings:
            own["settings"] = {**settings, "faults": {"host_deadline_ms": None, **settings.get("faults", {})}}
        return Served(engine(None if settings is None else "SPECPLUG", **own))

    return started


@pytest.fixture(scope="session")
def draft_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return an algorithm's draft model.  A standalone one is the target itself."""
    heads = tmp_path_factory.mktemp("heads")
    found = {
        "STANDALONE": TINY,
        "EAGLE": write_head(heads / "eagle", "LlamaForCausalLMEagle"),
        "EAGLE3": write_head(heads / "eagle3", "LlamaForCausalLMEagle3"),
    }
    return found.__getitem__
