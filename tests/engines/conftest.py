"""The tests of engines need those' own environments, and those of kernels vLLM's: `make test-vllm`, `make test-sglang`
and `make test-kernels` name their folders, other runs pass them by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engines.engines import Adapter, Engine, Pool
from tests.engines.server import ForkedServer, Server

collect_ignore = ["vllm", "sglang", "kernels"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what an engine's table of suites leaves to `make test-all`; see `tests.engines.suites.served`."""
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        suite = getattr(item, "cls", None)
        fast = getattr(suite, "fast", None) if "name" in given else None
        pairs = None if fast is None else fast.get(item.function.__name__, fast[""])
        is_slow = pairs is not None and (given["kind"], given["name"]) not in pairs
        if is_slow or given.get("kind") in getattr(suite, "slow", ()):
            item.add_marker("slow")


POOLS = pytest.StashKey[list[Pool]]()


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Pool]:
    """The engines of the session: one per configuration."""
    pool = Pool(tmp_path_factory.mktemp("engines"))
    pytestconfig.stash.setdefault(POOLS, []).append(pool)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def engine(pool: Pool, adapter: Adapter) -> Callable[..., Engine]:
    """Make an engine: ``engine("v2", {"proposer": "bigram"}, draft_length=4)``; see `configuration` of its `launch`."""

    def make(*args: Any, name: str = "engine", **kwargs: Any) -> Engine:
        return pool.tenant(adapter.engine, name, adapter.configuration(*args, **kwargs))

    return make


@pytest.fixture(scope="session")
def serve(pool: Pool, adapter: Adapter) -> Callable[..., Server]:
    """Make a server, with arguments as `engine` takes them; `anew` as a user starts one, else it is forked."""

    def make(*args: Any, name: str = "server", anew: bool = False, **kwargs: Any) -> Server:
        stated = adapter.configuration(*args, **{**adapter.served, **kwargs})
        return pool.tenant(Server if anew else ForkedServer, name, stated)

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many engines were started: they take most of the time."""
    for pool in config.stash.get(POOLS, []):
        again = sorted(tenant.name for tenant, count in Counter(pool.started).items() if count > 1)
        terminalreporter.write_line(
            f"{len(pool.started)} engines started in {pool.seconds:.0f} s; more than once: {', '.join(again) or 'none'}"
        )
