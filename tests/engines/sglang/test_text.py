"""SGLang as `specplug generate`, `demo` and `bench` drive it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specplug.errors import EngineError, RequestError
from specplug.plugins.engines import TextRequest, TextUpdate
from specplug.settings import Settings
from specplug_sglang.generate import SglangEngine
from tests.engines import plain
from tests.engines.launch import TINY
from tests.engines.sglang.launch import Configuration, configuration

SPECPLUG = Path(sys.executable).parent / "specplug"
COPIES = "<|code|>import os\nimport sys\n\ndef main():\n    return os.path.join(sys.argv[0], os.getcwd())\n"
SHORT = "def main():\n"


@pytest.fixture(scope="module")
def running() -> Iterator[SglangEngine]:
    """An engine in processes of its own, as the command line starts it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in configuration().variables().items():
            patch.setenv(name, value)
        settings = Settings.model_validate({"faults": {"host_deadline_ms": None}})
        engine = SglangEngine(str(TINY), settings, threads=1)
    yield engine
    engine.close()


def joined(updates: list[TextUpdate], index: int = 0) -> tuple[str, list[int], str | None]:
    mine = [update for update in updates if update.index == index]
    reasons = [update.finish_reason for update in mine]
    assert reasons[:-1] == [None] * (len(mine) - 1)
    return "".join(u.text for u in mine), [token for u in mine for token in u.token_ids], reasons[-1]


def test_requests_are_served_together_and_drafts_are_counted(running):
    before = running.metrics.snapshot()
    fields = {"enabled": False}
    requests = [TextRequest(prompt=COPIES, max_tokens=40), TextRequest(prompt=SHORT, max_tokens=12, specplug=fields)]
    updates = list(running.stream(requests))
    for index, (request, length) in enumerate(zip(requests, (40, 12), strict=True)):
        text, token_ids, reason = joined(updates, index)
        prompt = tuple(plain.ids(request.prompt))
        assert token_ids == plain.greedy(prompt, length)["token_ids"]
        assert text == plain.tokenizer().decode(token_ids)
        assert reason == "length"
    counts = running.metrics.snapshot() - before
    assert counts.total.accepted > 0
    undrafted = [counts.by_source[name].target_steps for name in ("none", "off") if name in counts.by_source]
    assert sum(undrafted) >= 12  # a step for each token of the request whose fields say so
    assert max(len(update.token_ids) for update in updates if update.index == 0) > 1


def test_whoever_stops_listening_ends_the_request(running):
    stream = running.stream([TextRequest(prompt=COPIES, max_tokens=800)])
    next(stream)
    stream.close()
    before = running.metrics.snapshot()
    _, token_ids, _ = joined(list(running.stream([TextRequest(prompt=SHORT, max_tokens=6)])))
    assert len(token_ids) == 6
    assert (running.metrics.snapshot() - before).total.emitted < 40  # nothing of the first came beside it


def test_a_wrong_request_is_refused_and_the_engine_goes_on(running):
    with pytest.raises(RequestError, match="unknown request field 'bogus'"):
        list(running.stream([TextRequest(prompt=SHORT, specplug={"bogus": 1})]))
    assert joined(list(running.stream([TextRequest(prompt=SHORT, max_tokens=3)])))[2] == "length"


def test_sampling_parameters_reach_sglang(running):
    _, token_ids, reason = joined(list(running.stream([TextRequest(prompt=COPIES, max_tokens=40, stop=["return"])])))
    assert reason == "stop"
    assert len(token_ids) < 12
    drawn = TextRequest(prompt=SHORT, max_tokens=4, temperature=0.8, top_k=3, top_p=0.9, seed=5)
    assert len(joined(list(running.stream([drawn])))[1]) == 4


def test_it_describes_itself(running):
    assert running.describe() == "tiny, float32, on cpu, SGLang 0.5.23"


def test_an_engine_that_does_not_start_says_so_and_leaves_its_log(monkeypatch, tmp_path):
    for name, value in configuration().variables().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=r"SGLang does not start on model .*absent") as raised:
        SglangEngine(str(tmp_path / "absent"), Settings(), threads=1)
    log = Path(str(raised.value).rpartition("log: ")[2])
    assert log.is_file()
    log.unlink()


def test_where_sglang_does_not_run_the_command_line_says_so_once(tmp_path):
    config = Configuration({}, {"PYTHONPATH": "", "TMPDIR": str(tmp_path)})
    command = [SPECPLUG, "generate", "tiny", SHORT, "--engine", "sglang"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=config.variables())
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    stated = " ".join(done.stderr.split())
    assert "SGLang does not run on this machine, which has no accelerator that torch finds; found" in stated
    assert "ModuleNotFoundError" in stated
    assert "def main" not in done.stdout
    assert len(os.listdir(tmp_path)) == 1  # the log that the message names


@pytest.mark.slow
def test_audit_runs_sglang_with_and_without_speculation():
    options = (
        "audit",
        "tiny",
        "--engine",
        "sglang",
        "--limit",
        "4",
        "--check",
        "greedy",
        "--check",
        "logprobs",
        "--json",
    )
    variables = configuration().variables()
    done = subprocess.run([SPECPLUG, *options], capture_output=True, text=True, timeout=900, env=variables)
    report = json.loads(done.stdout)
    assert report["passed"], report
    assert report["drafts"]["accepted"] > 0
