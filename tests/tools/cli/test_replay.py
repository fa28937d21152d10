"""`specplug replay`, on the shipped traces and on small ones of our own."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from specplug.plugins import registry
from specplug.tools.cli import launch
from specplug.tools.replay import engine
from tests.tools.cli import tools
from tests.tools.forecast.metrics import VLLM, answering
from tests.tools.replay import tools as tools_of_replay
from tests.tools.replay.tools import Planted

invoke, replayed = partial(tools.invoke, "replay"), partial(tools.stated, "replay")
SMALL = ("--workloads", "structured", "--limit", "1", "--batch", "1", "--tokenizer", "tiny")
TEXT = "the quick brown fox jumps over the lazy dog and runs away from the old grey wolf "


def without_times(found):
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key != "microseconds_per_step"}
    return [without_times(value) for value in found] if isinstance(found, list) else found


@pytest.fixture
def copying(tmp_path):
    """Two workloads; the answers of `copy` stand in their prompts, those of `fresh` nowhere."""
    text = TEXT * 3
    fresh = TEXT[::-1].upper()
    items = [
        {"id": "c", "workload": "copy", "prompt": f"Repeat: {text} Answer: ", "documents": [], "output": text},
        {"id": "f", "workload": "fresh", "prompt": "Say something new: ", "documents": [], "output": fresh},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_the_shipped_traces_are_replayed_when_none_are_named():
    result = invoke("--limit", "1", "--batch", "1,64", "--tokenizer", "tiny")
    assert result.exit_code == 0, result.output
    titles = ("Drafts at batch size 1, gamma 15, serving", "Speed-up S(B) over plain decoding, gamma 15, serving")
    titles += ("All workloads pooled, by batch size, gamma 15", "Confidence against acceptance at batch size 1")
    for title in titles:
        assert title in " ".join(result.stdout.split())  # titles wrap above narrow tables
    for row in ("agentic", "code_edit", "structured", "pooled", "geometric mean", "no drafts"):
        assert f" {row} " in result.stdout
    assert "Tokenizer: tiny" in result.stdout
    assert "replaying" in result.stderr
    assert "replaying" not in result.stdout


def test_what_stands_in_the_prompt_is_drafted_and_what_stands_nowhere_is_not(copying):
    (run,) = replayed(str(copying), "--tokenizer", "tiny", "--batch", "1", "--gamma", "8")["runs"]
    copy, fresh = run["workloads"]["copy"], run["workloads"]["fresh"]
    assert copy["tau"] > 5
    assert copy["acceptance_rate"] > 0.7
    assert fresh["tau"] < 1.3
    assert copy["speedup"]["1"] > 4
    assert run["pooled"]["emitted"] == copy["emitted"] + fresh["emitted"]


def test_lookup_is_compared_with_an_engines_drafter_and_after_it(copying, monkeypatch):
    arguments = (str(copying), "--tokenizer", "tiny", "--batch", "1", "--gamma", "8")
    found = replayed(*arguments, "--engine-drafter", "0.9,0.8")["runs"]
    assert [run["label"] for run in found] == ["engine (batch)", "ngram (batch)", "engine + ngram (batch)"]
    assert [run["gamma"] for run in found] == [2, 8, 8]
    assert [run["engine_rates"] for run in found] == [[0.9, 0.8], [], [0.9, 0.8]]
    alone, lookup, both = (run["workloads"] for run in found)
    assert both["copy"]["tau"] > 0.9 * lookup["copy"]["tau"] > alone["copy"]["tau"]
    assert both["fresh"]["tau"] > 0.9 * alone["fresh"]["tau"] > lookup["fresh"]["tau"]
    monkeypatch.setenv("SPECPLUG_CONFIG", '{"proposer": "hybrid", "options": {"hybrid": {"model": "engine"}}}')
    assert [run["label"] for run in replayed(*arguments, "--engine-drafter", "1")["runs"]] == [
        run["label"] for run in found
    ]


def test_the_acceptance_of_an_engines_drafter_is_read_from_its_metrics(copying):
    with answering(VLLM) as url:
        alone = replayed(str(copying), "--tokenizer", "tiny", "--batch", "1", "--engine-drafter", url)["runs"][0]
        survival = tools.stated("plan", "--metrics", url, "--batch", "1")["acceptance"]["survival"]
    assert [kept / before for kept, before in zip(survival, [1, *survival], strict=False)] == alone["engine_rates"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("0.8,x",), "--engine-drafter: bad acceptance; found '0.8,x'"),
        (("0.8,0.7", "--gamma", "2"), "options.hybrid.model_tokens (--engine-drafter): nothing is left to draft"),
        (("0.8", "--trees"), "--engine-drafter: lookup goes on after a chain; found --trees"),
        (("0.8", "--proposer", "ngram-reference"), "found ngram-reference; expected ngram or retrieval"),
    ],
)
def test_what_no_lookup_continues_is_refused(copying, given, message):
    assert message in invoke(str(copying), "--engine-drafter", *given, code=2).stderr


def test_a_policy_that_never_drafts_is_plain_decoding(copying):
    found = replayed(str(copying), "--tokenizer", "tiny", "--policy", "none", "--batch", "1,64")
    assert {run["pooled"]["tau"] for run in found["runs"]} == {1.0}
    assert all(
        run["mean_speedup"] == {str(b): pytest.approx(1 / 1.02) for b in run["batches"]} for run in found["runs"]
    )
    assert {run["reliability"] for run in found["runs"]} == {None}


def test_counts_are_the_same_however_many_processes_share_the_work(copying):
    arguments = (str(copying), "--workloads", "fresh,copy", "--batch", "1", "--tokenizer", "tiny")
    alone, shared = replayed(*arguments), replayed(*arguments, "--jobs", "2")
    assert without_times(alone) == without_times(shared)
    assert list(shared["runs"][0]["workloads"]) == ["copy", "fresh"]  # as in the traces


def test_options_reach_the_plugin(copying):
    def drafted(*options: str) -> int:
        arguments = [word for option in options for word in ("--option", option)]
        chosen = (str(copying), "--tokenizer", "tiny", "--batch", "1", "--workloads", "copy", "--policy", "fixed")
        found = replayed(*chosen, *arguments)
        return found["runs"][0]["pooled"]["verified"]

    assert drafted("fixed.gamma=0") == 0
    assert 0 < drafted("fixed.gamma=2") < drafted()
    assert drafted("fixed.gamma=2", "fixed.token_budget=1") < drafted("fixed.gamma=2")


def test_gamma_is_the_servers_unless_it_is_given(copying, monkeypatch):
    arguments = (str(copying), "--tokenizer", "tiny", "--batch", "1,32")
    assert [run["gamma"] for run in replayed(*arguments)["runs"]] == [15, 15]
    monkeypatch.setenv("SPECPLUG_CONFIG", '{"num_speculative_tokens": 6}')
    assert [run["gamma"] for run in replayed(*arguments)["runs"]] == [6, 6]
    assert [run["gamma"] for run in replayed(*arguments, "--gamma", "5")["runs"]] == [5, 5]


def test_the_policy_is_reported_the_batch_size(copying):
    """The budget is the whole batch's, so that each of many requests has less of it."""
    budget = ("--policy", "fixed", "--option", "fixed.token_budget=64", "--gamma", "8")
    runs = replayed(str(copying), "--tokenizer", "tiny", "--workloads", "copy", "--batch", "1,16,128", *budget)["runs"]
    alone, some, many = (run["pooled"]["drafts_per_step"] for run in runs)
    assert alone > some > many
    assert some <= 4
    assert many <= 1


def test_both_modes_are_shown_one_after_the_other():
    found = replayed(*SMALL, "--mode", "both")
    assert [run["mode"] for run in found["runs"]] == ["cold", "serving"]
    assert [run["workloads"]["structured"]["requests"] for run in found["runs"]] == [1, 1]  # --limit 1


def test_the_cost_of_a_step_is_settable(copying):
    arguments = (str(copying), "--tokenizer", "tiny", "--batch", "64", "--policy", "none")
    found = replayed(*arguments, "--saturation", "16", "--overhead", "0.5")
    assert found["roofline"] == {"n_sat": 16, "overhead": 0.5}
    assert found["no_drafts"] == found["runs"][0]["mean_speedup"] == {"64": pytest.approx(1 / 4.5)}


def install(monkeypatch, factory) -> None:
    """Register the proposer `planted` as if its package were installed."""
    found = tools_of_replay.registry(factory, needs_host=True)
    for module in (registry, engine, launch):
        monkeypatch.setattr(module, "default_registry", lambda: found)


def test_what_is_requested_for_reaches_the_proposer(monkeypatch):
    built = []

    def build(context):
        built.append((context.caps.max_draft_length, context.max_slots, context.caps.trees, Planted()))
        return built[-1][-1]

    install(monkeypatch, build)
    replayed(*SMALL, "--proposer", "planted")
    replayed(*SMALL, "--proposer", "planted", "--gamma", "3", "--trees", "--references")
    assert [caps for *caps, _ in built] == [[15, 1, False], [3, 1, True]]
    assert [len(proposer.events[0].request.references) for *_, proposer in built] == [0, 1]


def test_a_fault_is_reported_and_ends_with_exit_code_1(copying, monkeypatch):
    install(monkeypatch, lambda context: Planted(lambda batch, row, limit: 1 / 0))
    shown = invoke(copying, "--tokenizer", "tiny", "--batch", "1", "--proposer", "planted", code=1).stdout
    assert "Faults of planted" in shown
    assert "pooled" in shown


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (("--workloads", "agentc"), "Did you mean 'agentic'?"),
        (("--mode", "serve"), "Did you mean 'serving'?"),
        (("--batch", "1,x"), "bad batch sizes; found '1,x'"),
        (("--batch", "0"), "bad batch sizes"),
        (("--option", "gamma"), "expected PLUGIN.KEY=VALUE"),
        (("--option", "gamma=3"), "expected PLUGIN.KEY=VALUE"),
        (("--option", "fixed.gama=3"), "Did you mean 'options.fixed.gamma'?"),
        (("--proposer", "ngrm"), "Did you mean 'ngram'?"),
        (("--policy", "fixd"), "Did you mean 'fixed'?"),
        (("--gamma", "100000"), "num_speculative_tokens"),
        (("--tokenizer", "teken"), "Did you mean 'tekken'?"),
        (("/no/such/traces",), "cannot read traces"),
    ],
)
def test_mistakes_get_one_clear_message(arguments, stated):
    assert stated in invoke(*arguments, code=2).stderr


def test_a_missing_tokenizer_library_is_named(monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "mistral_common"] or ["mistral_common"]:
        monkeypatch.setitem(sys.modules, name, None)
    shown = invoke(*SMALL[:-2], "--tokenizer", "tekken", code=2).stderr
    assert "mistral_common" in shown
    assert "nstall" in shown


def test_without_mistral_common_the_shipped_tokenizer_is_used(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert replayed(*SMALL[:-2])["tokenizer"] == "tiny"
