"""`specplug doctor`'s report on vLLM where it is not installed, and its advice on a launch.  Needs no vLLM."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from specplug.errors import EngineError
from specplug.settings import ResolvedSettings, Settings
from specplug_vllm.config import lossy_method
from specplug_vllm.doctor import checks, launch
from specplug_vllm.seams.table import SEAMS
from specplug_vllm.startup import advice
from specplug_vllm.startup.advice import Launch, advise

SOUND = Launch(
    runner="v2",
    async_scheduling=True,
    draft_length=7,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    data_parallel_size=1,
    settings={},
    awaited_proposers=(),
)


def summaries(found: Launch) -> str:
    return "\n".join(result.summary for result in advise(found))


def test_a_sound_launch_gets_no_warning():
    assert {result.status for result in advise(SOUND)} == {"ok"}
    assert "V2 runner, async scheduling, up to 7 draft tokens" in summaries(SOUND)
    assert "(7 + 1) x 64 = 512 fits into max_num_batched_tokens = 512" in summaries(SOUND)


def test_a_batch_that_exceeds_the_token_budget_is_warned_of():
    (warning,) = [result for result in advise(replace(SOUND, max_num_seqs=65)) if result.status != "ok"]
    assert warning.status == "warn"
    assert "(7 + 1) x 65 = 520 exceeds max_num_batched_tokens = 512" in warning.summary
    assert "Raise --max-num-batched-tokens to 520" in warning.remedy
    assert "num_speculative_tokens to 6" in warning.remedy


@pytest.mark.parametrize(
    ("method", "lossy"), [("standard", False), ("block", False), ("synthetic", True), ("fly", True)]
)
def test_lossy_methods_of_vllm_are_known(method, lossy):
    config = SimpleNamespace(speculative_config=SimpleNamespace(rejection_sample_method=method))
    assert bool(lossy_method(config)) == lossy
    assert not lossy or method in lossy_method(config)


def test_lossy_verification_of_vllms_own_is_warned_of():
    (warning,) = [r for r in advise(replace(SOUND, lossy='"rejection_sample_method": "fly"')) if r.status != "ok"]
    assert 'LOSSY by vLLM\'s "rejection_sample_method": "fly"' in warning.summary


def test_no_draft_length_is_advised_where_none_would_fit():
    (warning,) = [r for r in advise(replace(SOUND, max_num_seqs=500)) if r.status == "warn"]
    assert "num_speculative_tokens" not in warning.remedy


def test_what_a_launch_refuses_and_costs_is_stated_where_it_applies():
    assert "min_p" not in summaries(SOUND)
    assert "refuses requests with min_p or logit_bias" in summaries(replace(SOUND, runner="v1"))
    assert "waits once" not in summaries(replace(SOUND, runner="v1", awaited_proposers=("ngram",)))
    assert "ngram drafts on the host" in summaries(replace(SOUND, awaited_proposers=("ngram",)))
    assert "maximum draft length, as ranks" in summaries(replace(SOUND, data_parallel_size=2))
    assert "deadlock" not in summaries(SOUND)


def test_steps_beyond_the_largest_cuda_graph_are_warned_of():
    graphs = ((7, 64), (3, 64), (1, 64), (0, 64))
    assert {result.status for result in advise(replace(SOUND, captured=graphs))} == {"ok"}
    assert "full CUDA graphs for 7 draft tokens up to 64 requests" in summaries(replace(SOUND, captured=graphs))
    large = replace(SOUND, max_num_seqs=128, max_num_batched_tokens=8192, captured=((7, 64), (3, 128), (0, 128)))
    (warning,) = [result for result in advise(large) if result.status == "warn"]
    assert "7 draft tokens up to 64 requests, 3 draft tokens up to 128 requests" in warning.summary
    assert "--max-cudagraph-capture-size to 1024" in warning.remedy


@pytest.fixture
def announced(monkeypatch, caplog):
    """Announce a launch, twice, and return what is logged."""

    def announce(found: Launch, settings: Settings) -> list[tuple[str, str]]:
        monkeypatch.setattr(advice, "launch_of", lambda config: found)
        monkeypatch.setattr(advice, "resolved", lambda config: ResolvedSettings(settings, {}))
        advice._log_once.cache_clear()
        with caplog.at_level(logging.INFO, logger="specplug"):
            advice.announce(None)
            advice.announce(None)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return announce


@pytest.mark.parametrize(
    ("plugins", "status"),
    [
        (None, "on, from this machine (SPECPLUG_OPERATOR_KEY opens it to others)"),
        ("specplug,mine", "off (VLLM_PLUGINS=specplug,mine,specplug_http turns it on)"),
        ("specplug, specplug_http", "off (VLLM_PLUGINS=specplug, specplug_http,specplug_http turns it on)"),
        ("specplug,specplug_http", "on, from this machine (SPECPLUG_OPERATOR_KEY opens it to others)"),
    ],
)
def test_one_line_says_what_starts(announced, monkeypatch, plugins, status):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("SPECPLUG_OPERATOR_KEY", raising=False)
    if plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    (line,) = announced(SOUND, Settings(proposer="ngram", extra_proposers=("retrieval",), policy="batch"))
    expected = "ngram + retrieval, policy batch, up to 7 draft tokens, V2, async"
    assert line == ("INFO", f"specplug {version('specplug')}: {expected}; /specplug/status: {status}")


def test_a_warning_is_logged_once(announced):
    _, (level, warning) = announced(replace(SOUND, max_num_seqs=70), Settings())
    assert level == "WARNING"
    assert "560 exceeds" in warning
    assert "Raise --max-num-batched-tokens" in warning


def test_without_vllm_its_checks_warn_and_a_launch_line_fails(monkeypatch):
    monkeypatch.setattr(checks, "package_folder", lambda: None)
    (found,) = checks.installed(Settings())
    assert (found.status, "not installed" in found.summary) == ("warn", True)
    assert checks.launch(Settings()) == []
    (found,) = checks.launch(Settings(), "vllm serve x")
    assert found.status == "fail"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A vLLM of which only the version is there."""
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "_version.py").write_text("__version__ = version = '0.32.1'\n")
    monkeypatch.setattr(checks, "package_folder", lambda: folder)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return folder


def test_every_seam_that_is_gone_fails_by_name(package):
    version, seams, entry_point = checks.installed(Settings())
    assert (version.status, "vLLM 0.32.1" in version.summary) == ("ok", True)
    assert seams.status == "fail"
    for seam in SEAMS:
        if seam.applies((0, 32)):
            assert f"{seam} is gone" in seams.summary
    assert entry_point.status == "ok"


@pytest.mark.parametrize(
    ("text", "status"),
    [("0.31.2", "fail"), ("0.32.0", "ok"), ("0.33.0", "ok"), ("0.34.0", "warn"), ("dev", "warn")],
)
def test_versions_are_judged(package, text: str, status: str):
    (package / "_version.py").write_text(f"__version__ = version = {text!r}\n")
    version, *_ = checks.installed(Settings())
    assert version.status == status
    assert text in version.summary
    assert "vLLM 0.32 to 0.33" in version.summary


def test_a_version_that_no_test_runs_is_reported(package):
    assert "compared" not in checks.installed(Settings())[0].summary
    (package / "_version.py").write_text("__version__ = version = '0.33.1'\n")
    assert "no test runs it, its seams were compared" in checks.installed(Settings())[0].summary


def test_a_vllm_that_does_not_say_its_version_is_untested(package):
    (package / "_version.py").unlink()
    version, *_ = checks.installed(Settings())
    assert (version.status, "vLLM dev" in version.summary) == ("warn", True)


@pytest.mark.parametrize(("allowed", "status"), [("other", "fail"), ("", "fail"), ("other, specplug", "ok")])
def test_vllm_plugins_may_keep_specplug_out(package, monkeypatch, allowed: str, status: str):
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    *_, entry_point = checks.installed(Settings())
    assert entry_point.status == status
    assert (status == "ok") == ("keeps" not in entry_point.summary)


def test_an_entry_point_that_is_not_registered_fails(package, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    *_, entry_point = checks.installed(Settings())
    assert entry_point.status == "fail"
    assert "vllm.general_plugins" in entry_point.summary


def test_in_general_is_stated_what_no_launch_line_narrows(package):
    text = "\n".join(result.summary for result in checks.launch(Settings()))
    for part in ("--launch", "min_p or logit_bias", "data parallelism"):
        assert part in text
    assert "on the host, on a thread" not in text
    awaited = checks.launch(Settings(proposer="ngram-reference"))
    assert any("ngram-reference drafts on the host" in result.summary for result in awaited)


def test_a_launch_that_does_not_ask_for_specplug_is_reported_how_to(package, monkeypatch):
    monkeypatch.setattr(launch, "ask", lambda line: None)
    (found,) = checks.launch(Settings(), "vllm serve m")
    assert found.status == "warn"
    assert "--additional-config.specplug.proposer" in found.remedy


def test_a_launch_line_that_fails_is_a_failed_check_with_the_reason(package):
    (found,) = checks.launch(Settings(), "vllm run m")
    assert (found.status, "'vllm serve MODEL ...'" in found.summary) == ("fail", True)


def test_a_launch_is_reported_with_its_settings_and_advice(package, monkeypatch):
    monkeypatch.setattr(launch, "ask", lambda line: replace(SOUND, settings={"mode": "off"}))
    first, *rest = checks.launch(Settings(), "vllm serve m")
    assert first.summary == "settings of the launch: mode: off"
    assert rest == advise(SOUND)


def test_launch_lines_are_read_as_a_shell_would():
    line = "A=1 B='x y' /usr/bin/vllm serve org/model --flag '{\"a\": 1}' \\\n  --other"
    arguments = ["org/model", "--flag", json.dumps({"a": 1}), "--other"]
    assert launch.parsed(line) == ({"A": "1", "B": "x y"}, arguments)
    assert launch.parsed("vllm serve --model m") == ({}, ["--model", "m"])
    assert launch.parsed("python -m vllm.entrypoints.openai.api_server --model m") == ({}, ["--model", "m"])
    with pytest.raises(EngineError, match="not a launch line"):
        launch.ask("python server.py")
