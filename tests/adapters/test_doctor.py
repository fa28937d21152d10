"""`specplug doctor` on both engines where they are not installed, and the advice on a launch.  Needs neither engine."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import specplug_sglang.doctor
import specplug_vllm.doctor
import specplug_vllm.startup.advice
from specplug.operator import launches
from specplug.operator.launches import Launch, ServerCommand
from specplug.plugins.specs import CheckResult
from specplug.seams.support import InstalledEngine
from specplug.settings import Settings
from specplug_sglang.config import default_requests
from specplug_sglang.seams import SEAMS
from specplug_vllm.config import METHOD, PROPOSER

DOCTORS = {"vLLM": specplug_vllm.doctor, "SGLang": specplug_sglang.doctor}
REQUESTS = "up to 48 requests (limited by --max-running-requests)"
HOST = "ngram-reference drafts on the host, on a thread"


def vllm_launch(monkeypatch, *, settings=None, method=None, lossy="standard", moe=False, ranks=1, graphs=0, **changes):
    """Return the launch of a vLLM configuration; `graphs` is the largest captured size in tokens."""
    given = {"runner": "v2", "draft_length": 7, "max_num_seqs": 64, "max_num_batched_tokens": 512, **changes}
    spec = SimpleNamespace(
        method=method or METHOD,
        model=None if method else PROPOSER,
        num_speculative_tokens=given["draft_length"],
        num_speculative_tokens_per_batch_size=changes.get("lengths"),
        rejection_sample_method=lossy,
        enable_adaptive_verification=False,
    )
    scheduler = SimpleNamespace(async_scheduling=True, **{key: given[key] for key in list(given) if "max_num" in key})
    config = SimpleNamespace(
        speculative_config=spec,
        scheduler_config=scheduler,
        additional_config={"specplug": settings or {}},
        use_v2_model_runner=given["runner"] == "v2",
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        model_config=SimpleNamespace(is_moe=moe),
        device_config=SimpleNamespace(device_type="cuda"),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(separate_routine=lambda: bool(graphs)), max_cudagraph_capture_size=graphs
        ),
    )
    return specplug_vllm.startup.advice.launch_of(config)


def sglang_launch(monkeypatch, *, settings=None, algorithm="SPECPLUG", topk=1, overlap=True, device="cuda", **changes):
    """Return the launch of SGLang's arguments; `graphs` is the largest batch with a graph."""
    given = {"draft_length": 8, "graphs": 64, "ranks": 1, "lossy": 1.0, "default": 2048, **changes}
    view = SimpleNamespace(
        speculative_algorithm=algorithm,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=given["draft_length"] + 1,
        speculative_accept_threshold_single=given["lossy"],
        speculative_accept_threshold_acc=1.0,
        max_running_requests=48,
        disable_overlap_schedule=not overlap,
        device=device,
        attention_backend="fa3",
        tp_size=given["ranks"],
        cuda_graph_config=SimpleNamespace(
            decode=SimpleNamespace(backend="full" if given["graphs"] else "disabled", max_bs=given["graphs"])
        ),
    )
    monkeypatch.setenv("SPECPLUG_CONFIG", json.dumps(settings or {}))
    for module in (specplug_sglang.config, specplug_sglang.doctor):
        monkeypatch.setattr(module, "resolved_args", lambda args: args)
    default = given["default"], "SGLang's default without speculation"
    monkeypatch.setattr(specplug_sglang.doctor, "default_requests_of", lambda args: default)
    monkeypatch.setattr(specplug_sglang.doctor, "verifies_greedily", lambda: device == "cpu")
    return specplug_sglang.doctor.launch_of(view)


SOUND: dict[str, Callable[..., Launch]] = {"vLLM": vllm_launch, "SGLang": sglang_launch}
EAGLE: dict[str, Any] = {"settings": {"proposer": "engine"}, "algorithm": "EAGLE", "draft_length": 5}
HYBRID = {**EAGLE, "settings": {"proposer": "hybrid", "options": {"hybrid": {"model": "engine", "model_tokens": 3}}}}
GRAPHS = "draft lengths 0, 1, 2, 4, 8 may be chosen"
NEXT_TO_MINE = {"lengths": [(1, 1, 7), (2, 64, 0)], "graphs": 256}

ADVICE = [
    ("vLLM", {}, "runs on the V2 runner, async scheduling, up to 7 draft tokens"),
    ("vLLM", {}, "(7 + 1) x 64 = 512 fits into max_num_batched_tokens = 512"),
    ("vLLM", {"method": "eagle"}, "vLLM's own drafter drafts, by eagle; specplug's policy chooses"),
    ("vLLM", {"method": "eagle"}, "vLLM refuses requests with min_p or logit_bias (HTTP 400)"),
    ("vLLM", {"runner": "v1"}, "the V1 runner refuses requests with min_p or logit_bias (HTTP 400)"),
    ("vLLM", {"settings": {"proposer": "ngram-reference"}}, HOST),
    ("vLLM", {"moe": True, "ranks": 2}, "data parallelism of 2: steps verify the server's maximum draft length"),
    ("vLLM", {"graphs": 512}, "full CUDA graphs for 7 draft tokens up to 64 requests"),
    ("SGLang", {}, "drafts are chains of up to 8 tokens; overlap scheduling, up to 48 requests at a time (limited by"),
    ("SGLang", {"topk": 4, "overlap": False}, "trees (--speculative-eagle-topk 4) of up to 8 tokens; synchronous"),
    ("SGLang", {}, "the plan, from results that are one step old"),
    ("SGLang", {}, "with a grammar in the batch"),
    ("SGLang", {}, "requests with penalties, min_new_tokens, a custom logit processor"),
    ("SGLang", {"ranks": 2}, "tensor-parallel ranks"),
    ("SGLang", {"settings": {"proposer": "ngram-reference"}}, HOST),
    ("SGLang", EAGLE, "SGLang's own drafter drafts, by EAGLE; specplug's policy chooses"),
    ("SGLang", EAGLE, "the rest of the draft is verified and never accepted"),
    ("SGLang", HYBRID, "SGLang's own drafter drafts 3 tokens, by EAGLE; lookup continues them"),
    ("SGLang", {**HYBRID, "device": "cpu"}, "draft lengths 0, 1, 2, 4, 5 may be chosen"),
    ("SGLang", {"device": "cpu"}, "every draft length from 0 to 8 may be chosen; cpu has no graphs"),
    ("SGLang", {"device": "cpu"}, "SGLang's verification on this device takes the likeliest token"),
    ("SGLang", {}, f"{GRAPHS}, each with graphs for up to 64 requests"),
    ("SGLang", {"graphs": 0}, f"{GRAPHS}; graphs are switched off, so every step runs eagerly"),
    ("SGLang", {"graphs": 47, "default": 48}, "larger batches run eagerly, as without speculation"),
]
WARNINGS = [
    ("vLLM", {"max_num_seqs": 65}, "(7 + 1) x 65 = 520 exceeds", "to 520 or more, or lower --max-num-seqs or num_sp"),
    ("vLLM", {"max_num_seqs": 500}, "exceeds", "Raise --max-num-batched-tokens to 4000 or more, or lower --max-num-"),
    ("vLLM", {"lossy": "fly"}, 'LOSSY by vLLM\'s "rejection_sample_method": "fly"', "Leave it out"),
    ("vLLM", NEXT_TO_MINE, "7 draft tokens up to 32 requests, 0 draft tokens up to 64", "capture-size to 512"),
    ("SGLang", {"lossy": 0.5}, "LOSSY by --speculative-accept-threshold-single 0.5", "Leave it out"),
    ("SGLang", {"graphs": 47}, "up to max_running_requests = 48, run eagerly", "--cuda-graph-max-bs-decode to 48"),
]


@pytest.mark.parametrize(("engine", "changes", "text"), ADVICE)
def test_launches_are_described(monkeypatch, engine, changes, text):
    advice = SOUND[engine](monkeypatch, **changes).advice
    assert {result.status for result in advice} == {"ok"}
    (found,) = [result for result in advice if text in result.summary]
    assert not found.remedy
    if changes and "ngram" not in text:  # what a change adds, a sound launch does not say
        assert text not in str(SOUND[engine](monkeypatch).advice)


@pytest.mark.parametrize(("engine", "changes", "text", "remedy"), WARNINGS)
def test_what_costs_speed_or_exactness_is_warned_of(monkeypatch, engine, changes, text, remedy):
    (found,) = [each for each in SOUND[engine](monkeypatch, **changes).advice if each.status == "warn"]
    assert text in found.summary
    assert remedy in found.remedy


@pytest.mark.parametrize("engine", SOUND)
def test_a_sound_launch_is_told_nothing_that_does_not_apply(monkeypatch, engine):
    text = str(SOUND[engine](monkeypatch).advice)
    for part in ("waits once", "deadlock", "own drafter", "tensor-parallel ranks", "V1", "LOSSY"):
        assert part not in text
    assert "waits once" not in str(vllm_launch(monkeypatch, runner="v1", settings={"proposer": "ngram-reference"}))


LINES = [
    (
        "vLLM",
        {"settings": {"extra_proposers": ["retrieval"]}},
        "ngram + retrieval, policy batch, up to 7 draft tokens, V2",
    ),
    ("vLLM", {"method": "eagle", "lossy": "fly"}, "up to 7 draft tokens, vLLM's eagle, V2, async, LOSSY"),
    ("SGLang", {}, f"ngram, policy batch, up to 8 draft tokens, chains, overlap, {REQUESTS}"),
    ("SGLang", {"topk": 4, "settings": {"mode": "off"}}, f"trees, overlap, {REQUESTS}, switched off by mode 'off'"),
    ("SGLang", EAGLE, "up to 5 draft tokens, SGLang's EAGLE, chains, overlap, up to 48 requests"),
]


@pytest.mark.parametrize(("engine", "changes", "line"), LINES)
def test_one_line_says_what_starts(monkeypatch, engine, changes, line):
    found = SOUND[engine](monkeypatch, **changes).line
    assert found.startswith(f"specplug {version('specplug')}: ")
    assert line in found


def test_the_line_and_the_warnings_are_logged_once(monkeypatch, caplog):
    launches._log_once.cache_clear()
    found = sglang_launch(monkeypatch, graphs=16)
    with caplog.at_level(logging.INFO, logger="specplug"):
        found.announce()
        found.announce()
    first, warning = [record.getMessage() for record in caplog.records]
    assert first == found.line
    assert "run eagerly. Raise --cuda-graph-max-bs-decode to 48" in warning


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


# -- what is installed -------------------------------------------------------------------------------------------------


@pytest.fixture(params=DOCTORS)
def doctor(request) -> ModuleType:
    return DOCTORS[request.param]


@pytest.fixture
def package(doctor, tmp_path, monkeypatch) -> Path:
    """An engine of which only the version is there."""
    folder = tmp_path / doctor.ENGINE.package
    folder.mkdir()
    newest = ".".join(map(str, doctor.ENGINE.versions.newest))
    (folder / "_version.py").write_text(f"version: str\n__version__ = version = {newest!r}\n")
    monkeypatch.setattr(InstalledEngine, "folder", folder)
    monkeypatch.delenv(doctor.ENGINE.allowing, raising=False)
    return folder


@pytest.fixture
def absent(monkeypatch) -> None:
    monkeypatch.setattr(InstalledEngine, "folder", None)


def test_without_an_engine_its_checks_warn_and_its_launch_lines_fail(doctor, absent):
    (found,) = doctor.installed(Settings())
    assert (found.status, "not installed" in found.summary) == ("warn", True)
    assert doctor.imports(Settings()) == doctor.launch(Settings()) == []
    (found,) = doctor.launch(Settings(), f"{doctor.ENGINE.package} serve x")
    assert (found.status, "not installed" in found.summary) == ("fail", True)


@pytest.mark.parametrize(
    ("doctor", "text", "status"),
    [
        ("vLLM", "0.31.2", "fail"),
        ("vLLM", "0.33.0", "ok"),
        ("SGLang", "0.5.23", "ok"),
        ("SGLang", "0.5.24rc1", "warn"),
    ],
    indirect=["doctor"],
)
def test_versions_are_judged(doctor, package, text: str, status: str):
    (package / "_version.py").write_text(f"__version__ = version = {text!r}\n")
    result, *_ = doctor.installed(Settings())
    assert result.status == status
    assert text in result.summary
    assert str(doctor.ENGINE.versions) in result.summary
    compared = doctor.ENGINE.versions.parse(text) in doctor.ENGINE.versions.compared
    assert ("no test runs it, its seams were compared" in result.summary) == compared


def test_an_engine_that_does_not_say_its_version_is_untested(doctor, package):
    (package / "_version.py").unlink()
    result, *_ = doctor.installed(Settings())
    assert (result.status, f"{doctor.ENGINE.versions.engine} dev" in result.summary) == ("warn", True)


def test_an_engine_that_does_not_import_or_lacks_seams_fails_by_name(package, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    entry = tmp_path / "sglang" / "srt" / "entrypoints"
    entry.mkdir(parents=True)
    (tmp_path / "sglang" / "version.py").write_text("__version__ = '0.5.23'")
    (entry / "engine.py").write_text("import no_such_triton")
    (found,) = specplug_sglang.doctor.imports(Settings())
    assert found.status == "fail"
    assert "does not import: ModuleNotFoundError: No module named 'no_such_triton'" in found.summary
    (entry / "engine.py").write_text("")
    imports, seams = specplug_sglang.doctor.imports(Settings())
    assert (imports.status, imports.summary) == ("ok", "SGLang imports")
    assert seams.status == "fail"
    for seam in SEAMS:
        assert (f"{seam} is gone" in seams.summary) == seam.applies((0, 5, 23))


@pytest.mark.parametrize("allowed", ["other", "", "other, specplug"])
def test_an_engines_variable_may_keep_specplug_out(doctor, package, monkeypatch, allowed: str):
    monkeypatch.setenv(doctor.ENGINE.allowing, allowed)
    *_, entry_point = doctor.installed(Settings())
    is_loaded = "specplug" in allowed or (not allowed and doctor is specplug_sglang.doctor)
    assert entry_point.status == ("ok" if is_loaded else "fail")
    assert is_loaded == ("keeps" not in entry_point.summary)


def test_an_entry_point_that_is_not_registered_fails(doctor, package, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    *_, entry_point = doctor.installed(Settings())
    assert entry_point.status == "fail"
    assert doctor.ENGINE.group in entry_point.summary


# -- launch lines ------------------------------------------------------------------------------------------------------


def test_in_general_is_stated_what_no_launch_line_narrows(doctor, package):
    text = "\n".join(result.summary for result in doctor.launch(Settings()))
    for part in ("--launch", "min_p", "data parallelism"):
        assert part in text
    assert "on the host, on a thread" not in text
    assert any(HOST in result.summary for result in doctor.launch(Settings(proposer="ngram-reference")))


@pytest.mark.parametrize("line", ["other serve m", "python server.py", "other serve /models/sglang --port 1", ""])
def test_lines_of_others_are_none_of_its_business(doctor, absent, line):
    assert doctor.launch(Settings(), line) == []


def test_a_launch_is_reported_with_its_line_settings_and_advice(doctor, package, monkeypatch):
    launch = Launch("a line", {"mode": "off"}, (CheckResult("warn", "slow", "Hurry"),))
    own = [CheckResult("ok", "a line"), CheckResult("ok", "settings of the launch: mode: off")]
    line = f"{doctor.ENGINE.package} serve m"
    monkeypatch.setattr(ServerCommand, "launch", lambda self, line: launch)
    assert doctor.launch(Settings(), line) == [*own, *launch.advice]
    monkeypatch.setattr(ServerCommand, "launch", lambda self, line: None)
    (found,) = doctor.launch(Settings(), line)
    assert (found.status, found.remedy) == ("warn", f"Add {doctor.COMMAND.enabling}")


def test_a_line_that_starts_no_server_is_refused(doctor, package):
    (found,) = doctor.launch(Settings(), f"{doctor.ENGINE.package} run m")
    assert (found.status, doctor.COMMAND.expected in found.summary) == ("fail", True)


@pytest.mark.parametrize(
    ("doctor", "line", "arguments"),
    [
        ("vLLM", "/usr/bin/vllm serve org/model --flag x", ["org/model", "--flag", "x"]),
        ("vLLM", "python -m vllm.entrypoints.openai.api_server --model m", ["--model", "m"]),
        ("vLLM", "vllm bench", None),
        ("SGLang", "python -m sglang.launch_server --model-path m --port 1", ["--model-path", "m", "--port", "1"]),
        ("SGLang", "/usr/bin/sglang serve org/model --tp 2", ["--model-path", "org/model", "--tp", "2"]),
        ("SGLang", "sglang serve --model-path m", ["--model-path", "m"]),
        ("SGLang", "sglang serve --model-type llm m --tp 2", ["--model-path", "m", "--tp", "2"]),
        ("SGLang", "uv run sglang serve m --model-type=auto", ["--model-path", "m"]),
        ("SGLang", "sglang serve", []),
        ("SGLang", "python -m sglang.bench_serving", None),
    ],
    indirect=["doctor"],
)
def test_the_servers_arguments_are_read_out_of_a_line(doctor, line, arguments):
    assert doctor.arguments_in(line.split()) == arguments
