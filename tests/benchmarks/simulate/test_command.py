"""`python -m benchmarks.simulate` as it is called."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.simulate.__main__ import app
from specplug.errors import SpecplugError

SMALL = [
    "--workloads",
    "structured",
    "--limit",
    "4",
    "--tokenizer",
    "tiny",
    "--proposer",
    "ngram-reference",
]
QUICK = ["--requests", "12", "--surface", "h200-8b", "--mode", "padded", "--traffic", "steady:4"]


def call(*arguments: str):
    return CliRunner().invoke(app, [*arguments])


def test_tables_name_the_surface_and_say_simulated(tmp_path):
    path = tmp_path / "drafts.npz"
    first = call(*SMALL, *QUICK, "--trajectories", str(path))
    assert first.exit_code == 0, first.output
    assert "Simulated: h200-8b, padded" in " ".join(first.stdout.split())
    again = call(*QUICK, "--trajectories", str(path), "--json", "--no-peers", "--policy", "fixed")
    data = json.loads(again.stdout)
    assert data["simulated"] is True
    assert [run["policy"] for run in data["runs"]] == [
        "none", "fixed 1", "fixed 3", "fixed 7", "fixed 15", "fixed", "clairvoyant",
    ]  # fmt: skip
    assert data["runs"][4]["goodput"] == data["runs"][5]["goodput"]  # by default as long as the server allows
    joined = ("--policy", "adaptive+fixed", "--option", "fixed.gamma=1")
    last = call(*QUICK, "--trajectories", str(path), "--json", "--no-peers", *joined)
    runs = json.loads(last.stdout)["runs"]
    assert runs[1]["policy"] == "fixed 1"
    assert runs[1]["goodput"] == runs[-2]["goodput"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--surface", "h200-24b-fp8-sync"], "held out"),
        (["--surface", "h100"], "unknown surface 'h100'"),
        (["--mode", "ragd"], "unknown mode 'ragd'"),
        (["--traffic", "flood"], "unknown traffic"),
        (["--option", "fixed.gama=3"], "gama"),
        (["--trajectories", "/no/such/folder/drafts.npz"], "no such folder"),
    ],
)
def test_mistakes_are_one_message(given, message):
    found = call(*SMALL, "--requests", "4", *given)
    assert isinstance(found.exception, SpecplugError)
    assert message in str(found.exception)


def test_surfaces_that_are_held_out_run_on_request(tmp_path):
    found = call(
        *SMALL, "--requests", "4", "--mode", "cut", "--traffic", "steady:1", "--no-peers", "--held-out", "--json"
    )
    assert {run["held_out"] for run in json.loads(found.stdout)["runs"]} == {True}
