"""The examples run as they stand, against a real engine.  They find the stand-ins for SGLang's kernels themselves."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.examples import command
from tests.engines.launch import ALWAYS, ROOT
from tests.engines.sglang.launch import SMALL


def run(name: str, *arguments: str, values: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return what an example writes to standard output, and to standard error.

    It runs by the command that stands in it, with values for placeholders, and arguments.
    """
    words = [*command(name, values), *arguments]
    environment = {**os.environ, **ALWAYS}
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


@pytest.mark.slow  # a server of its own
def test_the_client_shows_what_it_says(serve):
    server = serve("SPECPLUG", anew=True, name="examples")
    values = {"http://localhost:30000": server.url, "MODEL": server.model}
    lines = run("sglang_openai_client.py", values=values)[0].splitlines()
    assert "    with open(path, flags) as file:" in lines
    assert "the same, streamed, with a prediction: True" in lines
    assert any(line.startswith("chat: ") for line in lines)
    (refusal,) = [line for line in lines if line.startswith("400: ")]
    assert "specplug_propser" in refusal
    assert "specplug_proposer" in refusal
    (engine,) = json.loads(server.get("/specplug/status"))["engines"]
    assert engine["workers"][0]["metrics"]["total"]["accepted"] > 20


@pytest.mark.slow
def test_the_offline_example_drafts():
    edited, record, summary = run("sglang_offline.py")[0].split("\n---\n")
    assert "open(path, flags)" in edited
    assert json.loads(record)["name"] == "read"
    tokens, steps = map(int, re.search(r"(\d+) tokens in (\d+) steps", summary).groups())  # type: ignore[union-attr]
    assert tokens > 2 * steps


@pytest.fixture(scope="module")
def demo() -> tuple[dict[str, Any], str]:
    """Run the demo with one task of each kind; return its JSON output and its standard error."""
    out, beside = run("sglang_demo.py", "--tasks", "1", "--json")
    return json.loads(out), beside


@pytest.mark.slow  # `make demo-sglang` runs it
def test_the_demo_compares_two_servers(demo):
    rows = demo[0]["rows"]
    assert [(row["task"], row["identical"]) for row in rows] == [
        (k, 1) for k in ("edit", "quote", "json") for _ in "123"
    ]
    by_mode = {mode: [row for row in rows if row["mode"] == mode] for mode in {row["mode"] for row in rows}}
    assert all(row["acceptance_rate"] is None for row in by_mode["no speculation"])
    drafted = by_mode["specplug"] + by_mode["specplug, with the reference"]
    assert all(row["tokens_per_step"] > 1 for row in drafted)
    alone, referring = (by_mode[mode][2]["tokens_per_step"] for mode in ("specplug", "specplug, with the reference"))
    assert referring > alone  # the prompt of a "json" task does not hold its answer, the reference does


@pytest.mark.slow
def test_the_demo_says_what_it_runs_on(demo):
    report, beside = demo
    (remark,) = report["remarks"]
    assert "stand-ins" in remark
    assert beside.splitlines()[0] == remark


def test_stand_ins_run_in_little_memory(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    arguments = importlib.import_module("sglang_stand_ins").arguments()
    assert arguments["max_total_tokens"] <= 8192
    assert arguments["mem_fraction_static"] == SMALL["mem_fraction_static"]  # with which the tests start


def test_where_sglangs_own_kernels_run_nothing_stands_in(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    demo, stand_ins = (importlib.import_module(name) for name in ("sglang_demo", "sglang_stand_ins"))
    before = [*sys.path], {**os.environ}
    assert stand_ins.needed()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin="/x/sgl_kernel/__init__.py"))
    assert not stand_ins.needed()
    stand_ins.use()
    assert ([*sys.path], {**os.environ}) == before
    plain, fast = demo.launches({"proposer": "ngram"}, 8)
    assert (plain.environment, [*fast.environment]) == ({}, ["SPECPLUG_CONFIG"])
    assert not {"--device", "cpu", "torch_native"} & {*plain.command, *fast.command}
    assert fast.command[-4:] == ["--speculative-algorithm", "SPECPLUG", "--speculative-num-draft-tokens", "9"]
