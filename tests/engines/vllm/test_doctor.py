"""`specplug doctor` and `specplug generate` beside a real vLLM."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specplug.errors import EngineError
from specplug.serving import launches
from specplug_vllm import launch
from specplug_vllm.advice import Launch, advise
from tests.engines.vllm.launch import Configuration, configuration

SPECPLUG = Path(sys.executable).parent / "specplug"
NGRAM = {"proposer": "ngram", "policy": "fixed", "mode": "off"}


def line_of(config: Configuration) -> str:
    return shlex.join(["vllm", "serve", *config.flags(), "--port", "1"])


def specplug(config: Configuration, *arguments: str) -> str:
    done = subprocess.run([SPECPLUG, *arguments], capture_output=True, text=True, timeout=900, env=config.variables())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_doctor_looks_through_a_launch_line():
    config = configuration("v1", NGRAM)
    checks = json.loads(specplug(config, "doctor", "--json", "--launch", line_of(config)))["checks"]
    found = [check for check in checks if check["check"] in ("vllm", "vllm launch")]
    assert {check["status"] for check in found} == {"ok"}
    text = "\n".join(check["summary"] for check in found)
    for part in (
        "seams found",
        "vLLM loads specplug",
        "settings of the launch: mode: off",
        "V1 runner, synchronous scheduling, up to 8 draft tokens",
        "(8 + 1) x 8 = 72 fits into max_num_batched_tokens = 512",
        "refuses requests with min_p or logit_bias",
    ):
        assert part in text


def test_a_v2_launch_with_too_small_a_budget_is_warned_of_by_doctor_and_by_the_server():
    config = configuration("v2", NGRAM, asynchronous=True, width=32, max_num_seqs=16)
    _, arguments = launch.parsed(line_of(config))
    command = [sys.executable, "-m", "specplug_vllm.launch", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=config.variables())
    found = Launch(**launches.heard(done, "vLLM"))
    text = "\n".join(result.summary for result in advise(found))
    assert "V2 runner, async scheduling, up to 32 draft tokens" in text
    assert "ngram drafts on the host" in text
    (warning,) = [result.summary for result in advise(found) if result.status == "warn"]
    assert "(32 + 1) x 16 = 528 exceeds max_num_batched_tokens = 512" in warning
    assert warning in done.stdout  # in vLLM's log: what every server says when its configuration is made


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({"proposr": "ngram"}, {}, r"unknown setting 'proposr'.*Did you mean 'proposer'"),
        (NGRAM, {"pipeline_parallel_size": 2}, r"pipeline parallelism is not supported.*pipeline_parallel_size 2"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(monkeypatch, settings, arguments, message):
    config = configuration("v1", settings, **arguments)
    for name, value in config.environment.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match=message):
        launch.ask(line_of(config))


def test_generate_runs_on_vllm_and_writes_what_plain_decoding_does():
    prompt = "<|code|>import os\nimport sys\n\ndef main():\n    return os.path.join(sys.argv[0], os.getcwd())\n"
    options = ("generate", "tiny", prompt, "--engine", "vllm", "--max-tokens", "40", "--json")
    fast, plain = (json.loads(specplug(configuration("v1"), *options, *more)) for more in ((), ("--plain",)))
    assert fast["answers"] == plain["answers"]
    assert len(fast["answers"][0]["token_ids"]) == 40
    assert fast["statistics"]["accepted"] > 0 == plain["statistics"]["drafted"]
    assert fast["statistics"]["target_steps"] < plain["statistics"]["target_steps"] == 40
    assert "vLLM" in fast["statistics"]["model"]
