"""The cores that a process may use are those of its affinity, within the quotas of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from specplug.tools.cli import machine

V1 = "4:memory:/a\n1:cpu,cpuacct:/a/b\n"
QUOTA = "cpu.cfs_quota_us"
PERIOD = "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "want"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000"}, 16),
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "250000 100000"}, 3),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4),
        ("0::/../seen/from/inside\n", {"cpu.max": "300000 100000"}, 3),
        (V1, {f"cpu/a/b/{QUOTA}": "-1", f"cpu/a/b/{PERIOD}": "100000"}, 16),
        (V1, {f"cpu/a/b/{QUOTA}": "150000", f"cpu/a/b/{PERIOD}": "100000"}, 2),
        (V1, {f"cpu/{QUOTA}": "800000", f"cpu/{PERIOD}": "100000"}, 8),
        (V1, {f"memory/a/{QUOTA}": "100000", f"memory/a/{PERIOD}": "100000"}, 16),
        (None, {}, 16),
    ],
)
def test_quotas_of_control_groups_hold(monkeypatch, tmp_path: Path, groups, files, want):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(machine, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert machine.usable_cores() == want


def test_a_process_has_a_core():
    assert machine.usable_cores() >= 1
