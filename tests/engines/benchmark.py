"""Tests of `specplug bench` against a real server of any engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from specplug.cli.app import app
from specplug.demo.tasks import make_tasks
from tests.engines.server import Server


def bench(server: Server, folder: Path) -> dict[str, Any]:
    """Return what the benchmark reports of ten tasks, two of them in flight, and chats among them."""
    tasks = make_tasks("edit", "held-out", 10, 7)
    lines: list[dict[str, Any]] = [{"prompt": task.prompt} for task in tasks[:7]]
    lines += [{"messages": [{"role": "user", "content": task.prompt}]} for task in tasks[7:]]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--concurrency", "2", "--pairs", "2", "--max-tokens", "24", "--check", "2", "--json"]
    result = CliRunner().invoke(app, ["bench", server.url, str(path), *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def assert_measured(found: dict[str, Any]) -> None:
    """Hold the report to what must be so on any machine."""
    (row,) = found["rows"]
    assert found["check"] == {"identical": 2, "requested": 2}
    assert found["errors"] == []
    assert row["off"]["requests"] == row["on"]["requests"] == 4
    assert row["off"]["tokens_per_second"] > 0
    assert row["tokens_per_step"] > 1.5  # edits are copies
    assert row["throughput"]["low"] <= row["throughput"]["mean"] <= row["throughput"]["high"]
