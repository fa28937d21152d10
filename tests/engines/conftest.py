"""The tests of engines need those' own environments, and those of kernels vLLM's: `make test-vllm`, `make test-sglang`
and `make test-kernels` name their folders, other runs pass them by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.engines.engines import Pool

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many engines were started: they take most of the time."""
    for pool in config.stash.get(POOLS, []):
        again = sorted(tenant.name for tenant, count in Counter(pool.started).items() if count > 1)
        terminalreporter.write_line(
            f"{len(pool.started)} engines started in {pool.seconds:.0f} s; more than once: {', '.join(again) or 'none'}"
        )
