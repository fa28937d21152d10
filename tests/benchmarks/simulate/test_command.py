"""`python -m benchmarks.simulate` as it is called."""

from __future__ import annotations

import json

import pytest

from benchmarks.simulate.__main__ import main
from benchmarks.simulate.recording import SHIPPED

SMALL = [str(SHIPPED / "structured.jsonl"), "--limit", "4", "--tokenizer", "tiny", "--proposer", "ngram-reference"]
QUICK = ["--requests", "12", "--surface", "h200-8b", "--mode", "padded", "--traffic", "steady:4"]


def test_tables_and_json_name_the_case_and_say_simulated(tmp_path, capsys):
    path = tmp_path / "drafts.npz"
    assert main([*SMALL, *QUICK, "--trajectories", str(path)]) == 0
    assert "Simulated.\n\n| surface | mode |" in capsys.readouterr().out

    def data(*arguments):
        assert main([*QUICK, "--trajectories", str(path), "--json", "--no-peers", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    found = data("--policy", "fixed")
    assert found["simulated"] is True
    assert [run["policy"] for run in found["runs"]] == [
        "none", "fixed 1", "fixed 3", "fixed 7", "fixed 15", "fixed", "clairvoyant",
    ]  # fmt: skip
    assert found["runs"][4]["goodput"] == found["runs"][5]["goodput"]  # by default as long as the server allows
    runs = data("--policy", "adaptive+fixed", "--option", "fixed.gamma=1")["runs"]
    assert runs[1]["policy"] == "fixed 1"
    assert runs[1]["goodput"] == runs[-2]["goodput"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--surface", "h100"], "invalid choice: 'h100'"),
        (["--mode", "ragd"], "invalid choice: 'ragd'"),
        (["--traffic", "flood"], "traffic"),
        (["--policy", "fixed", "--option", "fixed.gama=3", "--traffic", "steady:1"], "gama"),
        (["--policy", "btach", "--traffic", "steady:1"], "btach"),
    ],
)
def test_mistakes_are_one_message(given, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*SMALL, "--requests", "4", "--no-peers", *given])
    assert message in capsys.readouterr().err
