"""The examples run as they stand, against a real engine."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Mapping

import pytest

from tests.engines.examples import command
from tests.engines.vllm.launch import ROOT, configuration

ENVIRONMENT = configuration("v1", in_process=False).variables()


def run(name: str, *arguments: str, values: Mapping[str, str] | None = None) -> str:
    """Return what an example writes: as its command stands in it, with values for placeholders, and arguments."""
    words = [*command(name, values), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_client_shows_what_it_says(v1_server):
    values = {"http://localhost:8000": v1_server.url, "MODEL": v1_server.model}
    lines = run("vllm_openai_client.py", values=values).splitlines()
    assert "    with open(path, flags) as file:" in lines
    assert "the same, streamed, with a prediction: True" in lines
    assert any(line.startswith("chat: ") for line in lines)
    (refusal,) = [line for line in lines if line.startswith("400: ")]
    assert "specplug_propser" in refusal
    assert "specplug_proposer" in refusal


@pytest.mark.slow
def test_the_offline_example_drafts():
    out = run("vllm_offline.py")
    edited, record, summary = out.split("\n---\n")
    assert "open(path, flags)" in edited
    assert json.loads(record)["name"] == "read"
    tokens, steps = map(int, re.search(r"(\d+) tokens in (\d+) steps", summary).groups())  # type: ignore[union-attr]
    assert tokens > 2 * steps


def test_the_demo_s_servers_ask_for_a_quarter_of_a_gib(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for launch in importlib.import_module("vllm_demo").launches({}, 8):
        assert launch.command[launch.command.index("--kv-cache-memory-bytes") + 1] == str(256 << 20)
        assert "VLLM_CPU_KVCACHE_SPACE" not in launch.environment  # which would come before it


@pytest.mark.slow  # `make demo-vllm` runs it
def test_the_demo_compares_two_servers():
    rows = json.loads(run("vllm_demo.py", "--tasks", "1", "--json"))["rows"]
    assert [(row["task"], row["identical"]) for row in rows] == [
        (k, 1) for k in ("edit", "quote", "json") for _ in "123"
    ]
    by_mode = {mode: [row for row in rows if row["mode"] == mode] for mode in {row["mode"] for row in rows}}
    assert all(row["acceptance_rate"] is None for row in by_mode["no speculation"])
    drafted = by_mode["specplug"] + by_mode["specplug, with the reference"]
    assert all(row["tokens_per_step"] > 1 for row in drafted)
