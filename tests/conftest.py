"""Configuration of all tests: no deadlines, so that a busy machine makes no test fail, and torch on one thread.

The models are so small that threads which wait for each other on a busy machine take many times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import compatibility

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; also for the processes that tests start

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


RAN = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RAN] = {"passed": [], "slow": []}


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.config.stash[RAN]["slow"].append(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[RAN]["passed"].append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record what a whole suite ran, for the compatibility matrix, and fail if a cell of it lacks its tests."""
    ran = session.config.stash[RAN]
    chosen = {str(path) for path in session.config.args}
    options = session.config.option
    of_another_version = bool(options.xmlpath)  # see `make test-versions`
    is_part = options.collectonly or options.keyword or options.markexpr not in ("", "not slow")
    if exitstatus or is_part or of_another_version:
        return
    for suite in dict.fromkeys(compatibility.SUITES.values()):
        everything = chosen & {"tests", str(session.config.rootpath)} and not options.ignore
        whole = suite in chosen or (suite == "tests/transformers" and everything)
        if not whole:
            continue
        mine = {kind: [name for name in names if name.startswith(suite)] for kind, names in ran.items()}
        gone = compatibility.missing_cells(suite, **mine)
        if gone:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            session.config.get_terminal_writer().line(
                "cells of tests/compatibility.py without a test: " + "; ".join(gone)
            )
        compatibility.RECORDS.mkdir(parents=True, exist_ok=True)
        (compatibility.RECORDS / f"{suite.rpartition('/')[2]}.json").write_text(json.dumps(mine))


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this checkout's source distribution, and of the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("archives")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(compatibility.ROOT)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ""})
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, which takes root to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid():
        pytest.skip("mounting a small disk takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
