"""Lists of requests: the slowest and the worst drafted of a trace, with the numbers that an explanation has."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from specplug.explain.explanation import explained
from specplug.explain.requests import LEAST_TOKENS, requests_of, summarised
from specplug.tools.cli.app import app
from specplug.trace import TraceRow, TraceWriter
from tests.explain.test_explanation import NUMBERS, ROW, drafted, following


def request(name: str, seed: int, seconds: float) -> list[TraceRow]:
    """Return the rows of a request whose drafts are kept in part, by chance."""
    chance = random.Random(seed)
    rows = [ROW]
    grammar = []
    for _ in range(chance.randrange(8, 20)):
        kept = chance.randrange(4)
        row = following(rows, [1] * (kept + 1), seconds * chance.uniform(0.5, 1.5))
        rows.append(drafted(row, [1] * kept + [2], kept, "rejected"))
        if chance.random() < 0.3:  # what a grammar drafts has a row of its own
            grammar.append(drafted(replace(row, start=0, emitted=()), [3], 0, "rejected", "grammar"))
    return [replace(row, request=name) for row in sorted(rows + grammar, key=lambda row: row.step)]


@pytest.mark.parametrize("seed", range(20))
def test_a_summary_has_the_numbers_of_the_explanation(seed):
    rows = request("r", seed, 0.01)
    [summary] = summarised(rows)
    whole = explained(rows, NUMBERS)
    steps = whole.steps[1:]  # the first one is the prefill's
    assert summary.steps == len(steps)
    assert summary.tokens == sum(len(step.tokens) for step in steps)
    assert (summary.drafted, summary.kept) == tuple(
        sum(source[key] for source in whole.sources.values()) for key in ("drafted", "kept")
    )
    assert summary.tau == pytest.approx(summary.tokens / summary.steps)
    assert summary.ms_per_token == pytest.approx(1000 * sum(step.seconds for step in steps) / summary.tokens, rel=0.02)


def test_the_lists_are_sorted_and_short_and_of_one_tenant(tmp_path):
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for number in range(6):
        rows = request(f"r{number}", number, 0.01 * (number + 1))
        writer.write(*(replace(row, tenant="acme" if number % 2 else "") for row in rows))
    writer.write(*[replace(ROW, request="short")] * 3)
    writer.close()
    found = requests_of(tmp_path / "trace.jsonl", None, None, 4)
    assert found.requests == 6
    assert len(found.slowest) == len(found.worst_drafted) == 4
    assert found.slowest == sorted(found.slowest, key=lambda each: -each.ms_per_token)
    assert found.slowest[0].request == "r5"
    assert found.worst_drafted == sorted(found.worst_drafted, key=lambda each: each.tau)
    acme = requests_of(tmp_path / "trace.jsonl", "acme", None, 4)
    assert {each.request for each in acme.slowest} == {"r1", "r3", "r5"}
    assert requests_of(tmp_path / "trace.jsonl", "nobody", None, 4).slowest == []


def test_an_id_that_is_used_again_means_its_last_use_and_few_tokens_say_nothing():
    once = request("r", 1, 0.01)
    again = [replace(row, time=row.time + 100) for row in request("r", 2, 0.02)]
    assert summarised(once + again) == summarised(again)
    rows = [ROW]
    for count in range(LEAST_TOKENS):
        assert summarised(rows) == [], count
        rows.append(following(rows, [1]))
    assert len(summarised(rows)) == 1


def test_a_clock_that_is_set_back_takes_a_step_out_of_the_seconds():
    rows = request("r", 1, 0.5)
    [whole] = summarised(rows)
    later = next(index for index, row in enumerate(rows) if row.step == rows[len(rows) // 2].step)
    [found] = summarised([*rows[:later], *(replace(row, time=row.time - 3600) for row in rows[later:])])
    assert found.seconds == pytest.approx(whole.seconds - (rows[later].time - rows[later - 1].time))


def test_the_command_lists_answers_when_none_is_named(tmp_path):
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path)
    writer.write(*request("fast", 1, 0.01), *(replace(row, tenant="acme") for row in request("slow", 2, 0.5)))
    writer.close()
    run = CliRunner().invoke(app, ["explain", str(path), "--json", "--limit", "1"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout) == requests_of(path, None, None, 1).model_dump()
    shown = CliRunner().invoke(app, ["explain", str(path)], env={"COLUMNS": "200"}).stdout
    assert shown.index("slow (tenant acme)") < shown.index("fast")
    assert "the slowest of 2 answers" in shown
