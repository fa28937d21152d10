"""Acceptance from the JSON of replays, real and wrong ones."""

from __future__ import annotations

import json

import pytest

from specplug.errors import SettingsError
from specplug.tools.forecast.acceptance import from_histogram, read_replay
from tests.tools.cli.tools import invoke


def run(label: str = "ngram (fixed)", mode: str = "serving", batches=(1,), rows=((2, 1, 2, 10),), **changed):
    workloads = {"a": {"histogram": [list(row) for row in rows]}}
    return {
        "label": label, "mode": mode, "gamma": 2, "batches": list(batches), "trees": False,
        "workloads": workloads, **changed,
    }  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(*runs):
        path = tmp_path / "replay.json"
        path.write_text(json.dumps({"runs": runs}))
        return path

    return write


def test_a_histogram_gives_the_share_of_steps_that_reach_each_position():
    # 4 steps without a draft, 3 drafts of 2 tokens (none, one and both accepted), 1 of 1 token at the end of an output
    found = from_histogram(run(rows=[(0, 0, 1, 4), (2, 0, 1, 1), (2, 1, 2, 1), (2, 2, 3, 1), (1, 1, 1, 1)]))
    assert found.verified == (4 / 8, 3 / 8)
    assert found.survival == (2 / 8, 1 / 8)
    assert found.tau(2) == 1 + 3 / 8
    assert found.tokens(2) == 1 + 7 / 8


def test_a_real_replay_gives_its_own_tau(tmp_path):
    path = tmp_path / "replay.json"
    arguments = ("--workloads", "structured,code_edit", "--limit", "1", "--tokenizer", "tiny", "--gamma", "6")
    result = invoke("replay", *arguments, "--batch", "1,64", "--json", code=0)
    path.write_text(result.stdout)
    (found,), first = read_replay(path), json.loads(result.stdout)["runs"][0]
    assert first["batches"] == [1]
    assert found.tau(6) == pytest.approx(first["pooled"]["tau"])
    assert found.tokens(6) == pytest.approx(1 + first["pooled"]["drafts_per_step"])
    assert "ngram (batch), serving, gamma 6, at batch size 1" in found.source


def test_the_smallest_batch_counts(write):
    small, large = run(batches=(1,), rows=((2, 2, 3, 5),)), run(batches=(64,))
    (found,) = read_replay(write(large, small))
    assert found.tau(2) == 3


def test_drafts_cost_what_a_model_drafts_of_them(write):
    rates, rows = [0.5, 0.5], ((4, 4, 5, 1), (4, 0, 1, 1))
    runs = run("engine (fixed)", engine_rates=rates), run(engine_rates=[]), run("both", rows=rows, engine_rates=rates)
    found = read_replay(write(*runs))
    assert [each.tau(4) for each in found] == [2, 2, 3]
    assert [each.model_tokens for each in found] == [2, 0, 2]
    assert read_replay(write(runs[1]))[0].model_tokens is None  # of the only proposer the file does not say


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ((run(), run("other (fixed)")), r"found ngram \(fixed\), serving; other \(fixed\), serving"),
        ((run(), run(mode="cold")), "one proposer in one mode"),
        ((run(engine_rates=[0.5]), run("other (fixed)", engine_rates=[])), "one proposer in one mode"),
        ((), "found no run"),
        ((run(trees=True),), "a plan is for chains; found trees"),
        ((run(rows=((0, 0, 1, 7),)),), "nothing was drafted"),
        (({"mode": "cold"},), "no JSON of a replay; found KeyError"),
    ],
)
def test_a_replay_of_something_else_is_refused(write, runs, message):
    with pytest.raises(SettingsError, match=message):
        read_replay(write(*runs))


@pytest.mark.parametrize("text", ["", "[]", '{"runs": 5}', '{"a": 1}', None])
def test_a_file_that_is_no_replay_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "other.json").write_text(text)
    with pytest.raises(SettingsError, match=r"no JSON of a replay.*specplug replay --json"):
        read_replay(tmp_path / "other.json")
