"""Costs of steps in the cache folder: what is kept, what is read, and what a damaged or read-only folder does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specplug.cost.measuring import Measurement
from specplug.cost.store import ASSUMED, cost_file, costs_at_start
from specplug.types.step import StepCost

KEY = {"model": "a", "threads": 1}
COSTS = (StepCost(1, 1, 256, 0, 0.02), StepCost(1, 4, 256, 3, 0.03))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specplug" / "costs"


def measured(costs: tuple[StepCost, ...] = COSTS, is_steady: bool = True) -> Measurement:
    return Measurement(costs, is_steady)


def never() -> Measurement:
    raise AssertionError("costs that are known are measured again")


def test_measured_costs_are_read_at_the_next_start(home: Path):
    first = costs_at_start(KEY, measured)
    again = costs_at_start(dict(reversed(KEY.items())), never)
    assert first.costs == again.costs == COSTS
    assert (first.basis, again.basis) == ("measured at start", f"from the cache file {cost_file(KEY)}")
    assert again.measured_at == first.measured_at
    assert [path.name for path in home.iterdir()] == [cost_file(KEY).name]
    status = again.status()
    assert status["age_seconds"] >= 0
    assert status["steps"][1] == {"requests": 1, "tokens": 4, "draft_length": 3, "ms": 30.0}
    assert json.loads(json.dumps(status)) == status


@pytest.mark.parametrize("other", [{**KEY, "threads": 2}, {**KEY, "host": "b"}, {"model": "a"}])
def test_another_key_is_measured_anew(other):
    costs_at_start(KEY, measured)
    assert costs_at_start(other, lambda: measured(COSTS[:1])).costs == COSTS[:1]
    assert costs_at_start(KEY, never).costs == COSTS


def test_costs_of_a_busy_machine_are_used_but_not_kept(home: Path):
    assert costs_at_start(KEY, lambda: measured(is_steady=False)).costs == COSTS
    assert not home.exists()


KEPT = {"requests": 1, "tokens": 2, "context_tokens": 256, "draft_length": 1, "seconds": 0.1}
WRONG = [
    {"costs": [], "measured_at": 1},
    {"costs": [{"requests": 1}], "measured_at": 1},
    {"costs": [{**KEPT, "requests": "1"}], "measured_at": 1},
    {"costs": [{**KEPT, "tokens": None}], "measured_at": 1},
    {"costs": [{**KEPT, "seconds": float("inf")}], "measured_at": 1},
    {"costs": [{**KEPT, "seconds": float("nan")}], "measured_at": 1},
    {"costs": [KEPT], "measured_at": float("nan")},
]


@pytest.mark.parametrize("content", ["", "{", "[]", *map(json.dumps, WRONG)])
def test_a_damaged_file_is_replaced(home: Path, content: str, caplog: pytest.LogCaptureFixture):
    home.mkdir(parents=True)
    cost_file(KEY).write_text(content)
    assert costs_at_start(KEY, measured).costs == COSTS
    assert str(cost_file(KEY)) in caplog.text
    assert costs_at_start(KEY, never).costs == COSTS


def test_a_folder_that_cannot_be_written_costs_no_more_than_the_file(home: Path):
    home.parent.mkdir(parents=True)
    home.write_text("a file where the folder should be")  # unlike missing rights, it holds for root, too
    for _ in range(2):
        assert costs_at_start(KEY, measured).basis == "measured at start"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_costs_no_more_than_the_file(home: Path):
    home.mkdir(parents=True)
    home.chmod(0o500)
    assert costs_at_start(KEY, measured).basis == "measured at start"


def test_a_file_appears_whole_or_not_at_all(home: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, text: str) -> int:
        path.touch()
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    assert costs_at_start(KEY, measured).costs == COSTS
    assert list(home.iterdir()) == []


def test_a_failure_to_measure_leaves_the_costs_unknown(caplog: pytest.LogCaptureFixture):
    def fails() -> Measurement:
        raise RuntimeError("out of memory")

    found = costs_at_start(KEY, fails)
    assert (found.costs, found.basis, found.status()["age_seconds"]) == ((), ASSUMED, None)
    assert "out of memory" in caplog.text
