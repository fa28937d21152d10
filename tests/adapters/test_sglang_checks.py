"""`specplug doctor`'s report on SGLang where it is not installed, and its advice on a launch.  Needs no SGLang."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pytest

from specplug.errors import EngineError
from specplug.settings import ResolvedSettings, Settings
from specplug_sglang.config import default_requests
from specplug_sglang.doctor import checks, launch
from specplug_sglang.seams.table import SEAMS
from specplug_sglang.startup import advice
from specplug_sglang.startup.advice import Launch, advise

CPU = Launch(
    draft_length=8,
    topk=1,
    overlap=True,
    device="cpu",
    attention_backend="torch_native",
    max_running_requests=48,
    limited_by="--max-running-requests",
    tensor_parallel_size=1,
    draft_lengths=(),
    graphs_up_to=None,
    settings={},
    awaited_proposers=(),
)
GPU = replace(CPU, device="cuda", attention_backend="fa3", draft_lengths=(0, 1, 2, 4, 8), graphs_up_to=64)

REQUESTS = "up to 48 requests (limited by --max-running-requests)"
EAGLE = replace(GPU, engine_drafter="EAGLE", draft_lengths=(0, 1, 2, 4, 5), draft_length=5)


def summaries(found: Launch) -> str:
    return "\n".join(result.summary for result in advise(found))


def test_a_launch_is_described():
    assert (
        "drafts are chains of up to 8 tokens; overlap scheduling, up to 48 requests at a time (limited by "
        "--max-running-requests), torch_native attention on cpu"
    ) in summaries(CPU)
    assert "trees (--speculative-eagle-topk 4) of up to 8 tokens; synchronous" in summaries(
        replace(CPU, topk=4, overlap=False)
    )


@pytest.mark.parametrize(
    ("context", "memory", "expected"),
    [(131_072, 80, 2048), (131_072, None, 2048), (1 << 20, 80, 320), (131_072, 24, 768), (1 << 24, 8, 48)],
)
def test_as_many_requests_run_as_without_speculation_memory_permitting(context, memory, expected):
    most, why = default_requests(context, None if memory is None else memory << 10)
    assert most == expected
    assert ("memory for token ids" in why) == (expected < 2048)


def test_recurrent_state_limits_them_further():
    most, why = default_requests(4096, 80 << 10, has_states=True)
    assert (most, "memory for recurrent state" in why) == (48, True)


def test_lossy_acceptance_is_warned_of():
    lossy = "--speculative-accept-threshold-single 0.5"
    (warning,) = [result for result in advise(replace(CPU, lossy=lossy)) if result.status != "ok"]
    assert f"LOSSY by {lossy}" in warning.summary


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        (CPU, "ok", "every draft length from 0 to 8 may be chosen; cpu has no graphs"),
        (GPU, "ok", "draft lengths 0, 1, 2, 4, 8 may be chosen, each with graphs for up to 64 requests"),
        (replace(GPU, graphs_up_to=48), "ok", "for up to 48 requests"),
        (replace(GPU, graphs_up_to=None), "ok", "graphs are switched off, so every step runs eagerly"),
        (replace(GPU, graphs_up_to=47), "warn", "larger batches, up to max_running_requests = 48, run eagerly"),
        (replace(GPU, graphs_up_to=47, limited_by="a default"), "ok", "larger batches run eagerly"),
    ],
)
def test_draft_lengths_and_their_graphs(found, status, text):
    (result,) = [result for result in advise(found) if "may be chosen" in result.summary]
    assert (result.status, text in result.summary) == (status, True)
    assert (status == "ok") == (result.remedy == "")


def test_what_is_left_to_the_host_is_stated_where_it_applies():
    assert "the plan, from results that are one step old" in summaries(CPU)
    assert "with a grammar in the batch" in summaries(CPU)
    assert "waits once" not in summaries(GPU)
    assert "ngram drafts on the host, on a thread" in summaries(replace(GPU, awaited_proposers=("ngram",)))
    assert "tensor-parallel ranks" not in summaries(GPU)
    assert "tensor-parallel ranks" in summaries(replace(GPU, tensor_parallel_size=2))


def test_requests_that_get_no_drafts_are_named():
    for name in ("penalties", "min_new_tokens", "custom logit processor", "min_p"):
        assert name in summaries(CPU)


def test_a_launch_survives_its_way_through_json():
    for found in (GPU, EAGLE):
        assert Launch.from_plain(json.loads(json.dumps(asdict(found)))) == found


def test_a_drafter_of_sglangs_is_named_with_what_it_costs():
    assert "SGLang's own drafter drafts, by EAGLE; specplug's policy chooses" in summaries(EAGLE)
    assert "the rest of the draft is verified and never accepted" in summaries(EAGLE)
    assert advice.UNDRAFTED not in summaries(EAGLE)
    assert advice.UNDRAFTED in summaries(GPU)


@pytest.mark.parametrize(
    ("found", "settings", "line"),
    [
        (GPU, {}, f"ngram, policy batch, up to 8 draft tokens, chains, overlap, {REQUESTS}"),
        (
            replace(GPU, topk=4, overlap=False),
            {"mode": "off"},
            f"ngram, policy batch, up to 8 draft tokens, trees, synchronous, {REQUESTS}, switched off by mode 'off'",
        ),
        (
            replace(GPU, graphs_up_to=16),
            {},
            f"ngram, policy batch, up to 8 draft tokens, chains, overlap, {REQUESTS}",
        ),
        (
            EAGLE,
            {"proposer": "engine"},
            f"engine, policy adaptive+batch, up to 5 draft tokens, SGLang's EAGLE, chains, overlap, {REQUESTS}",
        ),
    ],
)
def test_one_line_says_what_starts_and_warnings_follow_once(monkeypatch, caplog, found, settings, line):
    monkeypatch.setattr(advice, "launch_of", lambda server_args: found)
    monkeypatch.setattr(advice, "resolved", lambda server_args: ResolvedSettings(Settings(**settings), {}))
    advice._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="specplug"):
        advice.announce(None)
        advice.announce(None)
    first, *warnings = [record.getMessage() for record in caplog.records]
    assert first == f"specplug {version('specplug')}: {line}; /specplug/status: on, where HTTP is served"
    assert len(warnings) == (found.graphs_up_to == 16)
    assert all("run eagerly. Raise --cuda-graph-max-bs-decode to 48" in warning for warning in warnings)


# -- what is installed -------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An SGLang of which only the version is there."""
    folder = tmp_path / "sglang"
    folder.mkdir()
    (folder / "_version.py").write_text("version: str\n__version__ = version = '0.5.23'\n")
    monkeypatch.setattr(checks, "package_folder", lambda: folder)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    return folder


def test_without_sglang_its_checks_warn_and_its_launch_lines_fail(monkeypatch):
    monkeypatch.setattr(checks, "package_folder", lambda: None)
    (found,) = checks.installed(Settings())
    assert (found.status, "not installed" in found.summary) == ("warn", True)
    assert checks.launch(Settings()) == []
    (found,) = checks.launch(Settings(), "sglang serve x")
    assert (found.status, "not installed" in found.summary) == ("fail", True)


def test_an_sglang_that_does_not_import_fails(package, tmp_path, monkeypatch):
    entry = package / "srt" / "entrypoints"
    entry.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for text, status, summary in (
        ("", "ok", "SGLang imports"),
        ("import no_such_triton", "fail", "does not import: ModuleNotFoundError: No module named 'no_such_triton'"),
    ):
        (entry / "engine.py").write_text(text)
        (found,) = checks.imports(Settings())
        assert (found.status, summary in found.summary) == (status, True)
    monkeypatch.setattr(checks, "package_folder", lambda: None)
    assert checks.imports(Settings()) == []


def test_every_seam_that_is_gone_fails_by_name(package):
    version, seams, entry_point = checks.installed(Settings())
    assert (version.status, "SGLang 0.5.23" in version.summary) == ("ok", True)
    assert seams.status == "fail"
    for seam in SEAMS:
        if seam.applies((0, 5, 23)):
            assert f"{seam} is gone" in seams.summary
    assert entry_point.status == "ok"


@pytest.mark.parametrize(
    ("text", "status"),
    [("0.5.21", "fail"), ("0.5.22", "ok"), ("0.5.23", "ok"), ("0.5.24rc1", "warn"), ("0.6.0", "warn"), ("dev", "warn")],
)
def test_versions_are_judged(package, text: str, status: str):
    (package / "_version.py").write_text(f"__version__ = version = {text!r}\n")
    version, *_ = checks.installed(Settings())
    assert version.status == status
    assert text in version.summary
    assert "SGLang 0.5.22 to 0.5.23" in version.summary


def test_an_sglang_that_does_not_say_its_version_is_untested(package):
    (package / "_version.py").unlink()
    version, *_ = checks.installed(Settings())
    assert (version.status, "SGLang dev" in version.summary) == ("warn", True)


@pytest.mark.parametrize(("allowed", "status"), [("other", "fail"), ("", "ok"), ("other, specplug", "ok")])
def test_sglang_plugins_may_keep_specplug_out(package, monkeypatch, allowed: str, status: str):
    monkeypatch.setenv("SGLANG_PLUGINS", allowed)
    *_, entry_point = checks.installed(Settings())
    assert entry_point.status == status
    assert (status == "ok") == ("keeps" not in entry_point.summary)


def test_an_entry_point_that_is_not_registered_fails(package, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    *_, entry_point = checks.installed(Settings())
    assert entry_point.status == "fail"
    assert "sglang.srt.plugins" in entry_point.summary


# -- launch lines ------------------------------------------------------------------------------------------------------


def test_in_general_is_stated_what_no_launch_line_narrows(package):
    text = "\n".join(result.summary for result in checks.launch(Settings()))
    for part in ("--launch", "min_p", "data parallelism", "one step old"):
        assert part in text
    assert "on the host, on a thread" not in text
    awaited = checks.launch(Settings(proposer="ngram-reference"))
    assert any("ngram-reference drafts on the host" in result.summary for result in awaited)


@pytest.mark.parametrize("line", ["vllm serve m", "python server.py", "vllm serve /models/sglang --port 1", ""])
def test_lines_of_others_are_none_of_its_business(package, monkeypatch, line):
    monkeypatch.setattr(checks, "package_folder", lambda: None)
    assert checks.launch(Settings(), line) == []


def test_a_launch_that_does_not_ask_for_specplug_is_reported_how_to(package, monkeypatch):
    monkeypatch.setattr(launch, "ask", lambda line: None)
    (found,) = checks.launch(Settings(), "sglang serve m")
    assert found.status == "warn"
    assert "--speculative-algorithm SPECPLUG" in found.remedy


def test_a_launch_line_that_fails_is_a_failed_check_with_the_reason(package):
    (found,) = checks.launch(Settings(), "sglang generate m")
    assert (found.status, "'sglang serve MODEL ...'" in found.summary) == ("fail", True)


def test_a_launch_is_reported_with_its_settings_and_advice(package, monkeypatch):
    monkeypatch.setattr(launch, "ask", lambda line: replace(CPU, settings={"mode": "off"}))
    first, *rest = checks.launch(Settings(), "sglang serve m")
    assert first.summary == "settings of the launch: mode: off"
    assert rest == advise(CPU)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("python -m sglang.launch_server --model-path m --port 1", ["--model-path", "m", "--port", "1"]),
        ("/usr/bin/sglang serve org/model --tp 2", ["--model-path", "org/model", "--tp", "2"]),
        ("sglang serve --model-path m", ["--model-path", "m"]),
        ("sglang serve --model-type llm m --tp 2", ["--model-path", "m", "--tp", "2"]),
        ("uv run sglang serve m --model-type=auto", ["--model-path", "m"]),
        ("sglang serve", []),
        ("sglang version", None),
        ("python -m sglang.bench_serving", None),
    ],
)
def test_the_servers_arguments_are_read_out_of_a_line(line, arguments):
    assert launch.arguments_in(line.split()) == arguments


def test_a_line_that_starts_no_server_is_refused():
    with pytest.raises(EngineError, match="not a launch line"):
        launch.ask("python server.py")
