"""`specplug doctor` beside a real vLLM."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Engine, Pool
from tests.engines.vllm.launch import Configuration, configuration

SPECPLUG = Path(sys.executable).parent / "specplug"
NGRAM = {"proposer": "ngram", "policy": "fixed", "mode": "off"}


PLAIN = configuration("v1").flags()
VLLMS_NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
DOTTED = ["--speculative-config.model", "specplug_vllm.Proposer", "--speculative-config.num_speculative_tokens", "8"]
CONFIG_FILE = """
speculative-config: {method: custom_class, model: specplug_vllm.Proposer, num_speculative_tokens: 6}
additional-config: {specplug: {mode: "off"}}
"""
ALONE = ["--additional-config.specplug.mode", "off"]
DISPENSABLE = json.dumps({"specplug": {"dropped_logits_processors": ["acme-filter"]}})
CASES: dict[str, list[str]] = {
    "one flag": [*PLAIN, *ALONE],
    "one flag and a length": [*PLAIN, *ALONE, "--speculative-config.num_speculative_tokens", "5"],
    "two drafters": [*PLAIN, "--additional-config.specplug.proposer", "ngram", "--speculative-config", VLLMS_NGRAM],
    "dotted": [*PLAIN, *DOTTED, "--additional-config.specplug.mode", "off"],
    "underscores": [
        f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word
        for word in configuration("v1", NGRAM).flags()
    ],
    "file": [*PLAIN, "--config", "FILE"],
    "not asked": PLAIN,
    "typo": configuration("v1", {"proposr": "ngram"}).flags(),
    "pipeline": configuration("v1", NGRAM, pipeline_parallel_size=2).flags(),
    "logits processor of the launch": [*PLAIN, *DOTTED, "--logits-processors", "acme:Filter"],
    "logits processor": ["BESIDE", "FOLDER", *PLAIN, *DOTTED],
    "dispensable logits processor": [*PLAIN, *DOTTED, "--additional-config", DISPENSABLE],
    "unknown flag": [*PLAIN, *DOTTED, "--no-such-flag"],
    "no draft model": [*PLAIN, "--additional-config.specplug.proposer", "crosstok"],
}


@pytest.fixture(scope="module")
def answers(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """vLLM's answer to each of `CASES`, from a process that has imported vLLM and starts no engine.

    A logits processor stays installed from its first case on.
    """
    file = tmp_path_factory.mktemp("launch") / "server.yaml"
    file.write_text(CONFIG_FILE)
    package = tmp_path_factory.mktemp("installed") / "acme_filters-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-filters\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[vllm.logits_processors]\nacme-filter = acme:Filter\n")
    places = {"FILE": str(file), "FOLDER": str(package.parent)}
    lines = [[places.get(word, word) for word in words] for words in CASES.values()]
    doctor = pool.tenant(Engine, "doctor", Configuration({}, configuration("v1").environment))
    found = doctor.call(launches, lines=lines)
    doctor.stop()
    return dict(zip(CASES, found, strict=True))


def launches(_engine: None, lines: list[list[str]]) -> list[Any]:
    """Return what the doctor says of each line, or why it refuses it; "BESIDE" a folder are installed packages."""
    from specplug.errors import SpecplugError
    from specplug_vllm.doctor import COMMAND

    found: list[Any] = []
    for words in lines:
        if words[0] == "BESIDE":
            sys.path.append(words[1])
        try:
            launch = COMMAND.launch(shlex.join(["vllm", "serve", *words[2 * (words[0] == "BESIDE") :]]))
            found.append(None if launch is None else asdict(launch))
        except SpecplugError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    ("case", "draft_length"),
    [("one flag", 15), ("one flag and a length", 5), ("dotted", 8), ("underscores", 8), ("file", 6)],
)
def test_a_line_is_read_by_vllms_own_parser(answers, case, draft_length):
    found = answers[case]
    assert f"up to {draft_length} draft tokens" in found["line"]
    assert found["settings"]["mode"] == "off"


def test_a_line_without_specplug_is_not_looked_into(answers):
    assert answers["not asked"] is None


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("two drafters", ["vLLM's own drafter drafts on this server", "proposer 'ngram'", "method 'ngram'"]),
        ("typo", ["unknown setting 'proposr'", "Did you mean 'proposer'"]),
        ("pipeline", ["pipeline parallelism is not supported", "pipeline_parallel_size 2"]),
        ("logits processor", ["loads no logits processors", "'acme-filter' of the package acme-filters"]),
        ("logits processor of the launch", ["loads no logits processors", "acme:Filter of --logits-processors"]),
        ("unknown flag", ["error: unrecognized arguments: --no-such-flag"]),
        ("no draft model", ["proposer 'crosstok': no draft model is named"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(answers, case, parts):
    for part in parts:
        assert part in answers[case]


def test_a_logits_processor_is_dropped_only_by_name(answers):
    assert "without the logits processors acme-filter" in str(answers["dispensable logits processor"])


@pytest.mark.slow  # a process of its own; tests/adapters/test_doctor.py has the variable
def test_a_line_that_keeps_specplug_out_is_refused():
    line = shlex.join(["vllm", "serve", *PLAIN, *DOTTED])
    command = [SPECPLUG, "doctor", "--json", "--launch", f"VLLM_PLUGINS=other {line}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=configuration("v1").variables())
    (check,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, check["status"]) == (1, "fail")
    assert "vLLM has not loaded specplug" in check["summary"]
    assert "VLLM_PLUGINS='other'" in check["summary"]


def test_a_mistake_ends_the_server_with_one_message_before_anything_is_loaded():
    """Its configuration makes the checks that the doctor's refusals above come from."""
    config = configuration("v1", {"propser": "ngram"})
    done = subprocess.run(config.command(1), capture_output=True, text=True, timeout=900, env=config.variables())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.count("unknown setting 'propser'; found 'ngram'. Did you mean 'proposer'?") == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "EngineCore" not in done.stderr + done.stdout
