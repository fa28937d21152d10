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
    "pipeline": configuration("v1", NGRAM, pipeline_parallel_size=2).flags(),
    "logits processor of the launch": [*PLAIN, *DOTTED, "--logits-processors", "acme:Filter"],
    "logits processor": ["BESIDE", "FOLDER", *PLAIN, *DOTTED],
    "dispensable logits processor": [*PLAIN, *DOTTED, "--additional-config", DISPENSABLE],
    "unknown flag": [*PLAIN, *DOTTED, "--no-such-flag"],
}


def section(**settings: Any) -> list[str]:
    return [*PLAIN, "--additional-config", json.dumps({"specplug": settings})]


MISTAKES: dict[str, tuple[list[str], str]] = {
    "name of a setting": (section(proposr="ngram"), "unknown setting 'proposr'; found 'ngram'. Did you mean"),
    "name beside a method": (configuration("v1", {"proposr": "ngram"}).flags(), "Did you mean 'proposer'"),
    "kind of value": (section(num_speculative_tokens="many"), "setting 'num_speculative_tokens'; found 'many'"),
    "name of a proposer": (section(proposer="ngrm"), "unknown proposer 'ngrm'. Did you mean 'ngram'"),
    "name of a part": (section(proposer="hybrid", options={"hybrid": {"model": "crostok"}}), "Did you mean 'crosstok'"),
    "name of an option": (section(options={"ngram": {"min_nn": 3}}), "unknown setting 'options.ngram.min_nn'; found 3"),
    "name of a policy": (section(policy="fixd"), "unknown policy 'fixd'. Did you mean 'fixed'"),
    "option of a policy": (section(options={"batch": {"nope": 3}}), "unknown setting 'options.batch.nope'; found 3"),
    "value of an option": (
        section(policy="fixed", options={"fixed": {"gamma": 99}}),
        "policy 'fixed': gamma is too large; found 99; expected at most num_speculative_tokens, 15",
    ),
    "no section": ([*PLAIN, "--additional-config", '{"specplug": "ngram"}'], "'ngram'; expected a JSON object"),
    "no draft model": (section(proposer="crosstok"), "proposer 'crosstok': no draft model is named"),
    "no draft model of a part": (section(proposer="hybrid"), "proposer 'crosstok': no draft model is named"),
    "absent draft model": (
        section(proposer="crosstok", options={"crosstok": {"model": "/absent"}}),
        "/absent: cannot read the model's configuration; found no such folder",
    ),
    "absent file": (["SPECPLUG_CONFIG=/absent.toml", *section()], "cannot read the settings file; found No such file"),
    "broken file": (["SPECPLUG_CONFIG=proposer = 'ngram", *section()], "SPECPLUG_CONFIG: malformed settings; found"),
    "switch": (["SPECPLUG_ENABLE=yes", *PLAIN], "SPECPLUG_ENABLE: cannot tell whether to speculate; found 'yes'"),
    "place of the store": (section(proposer="retrieval", corpora={"store": "/dev/null"}), "become a corpus store"),
}
"""What settings may get wrong: the line, and a part of the message."""

STORE = section(proposer="retrieval", corpora={"store": "/absent/store"})


@pytest.fixture(scope="module")
def answers(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """vLLM's answer to each of `MISTAKES` and `CASES`, from a process that has imported vLLM and starts no engine.

    A logits processor stays installed from its first case on.
    """
    file = tmp_path_factory.mktemp("launch") / "server.yaml"
    file.write_text(CONFIG_FILE)
    package = tmp_path_factory.mktemp("installed") / "acme_filters-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-filters\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[vllm.logits_processors]\nacme-filter = acme:Filter\n")
    places = {"FILE": str(file), "FOLDER": str(package.parent)}
    lines = [words for words, _ in MISTAKES.values()]
    lines += [[places.get(word, word) for word in words] for words in (STORE, *CASES.values())]
    doctor = pool.tenant(Engine, "doctor", Configuration({}, configuration("v1").environment))
    found = doctor.call(launches, lines=lines)
    doctor.stop()
    return dict(zip([*MISTAKES, "absent store", *CASES], found, strict=True))


def launches(_engine: None, lines: list[list[str]]) -> list[Any]:
    """Return what the doctor says of each line, or why it refuses it; "BESIDE" a folder are installed packages.

    The first word may set a variable.
    """
    from specplug.errors import SpecplugError
    from specplug_vllm.doctor import COMMAND

    found: list[Any] = []
    for words in lines:
        if words[0] == "BESIDE":
            sys.path.append(words[1])
        try:
            variables = [word for word in words[:1] if word.startswith("SPECPLUG_")]
            arguments = words[len(variables) + 2 * (words[0] == "BESIDE") :]
            launch = COMMAND.launch(shlex.join([*variables, "vllm", "serve", *arguments]))
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
        ("pipeline", ["pipeline parallelism is not supported", "pipeline_parallel_size 2"]),
        ("logits processor", ["loads no logits processors", "'acme-filter' of the package acme-filters"]),
        ("logits processor of the launch", ["loads no logits processors", "acme:Filter of --logits-processors"]),
        ("unknown flag", ["error: unrecognized arguments: --no-such-flag"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(answers, case, parts):
    for part in parts:
        assert part in answers[case]


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_the_settings_is_told_in_a_sentence(answers, case):
    assert MISTAKES[case][1] in answers[case]
    assert answers[case].count("\n") == 0


def test_a_store_that_is_absent_is_told_with_what_makes_one(answers):
    assert "`specplug corpus build /absent/store FOLDER --tokenizer MODEL` makes one" in str(answers["absent store"])


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


def last_line(words: list[str]) -> str:
    """Return the last line of a server that ends by a mistake: all that it says of it, and there is no traceback."""
    config = configuration("v1", in_process=False)
    variables = dict(word.split("=", 1) for word in words[:1] if word.startswith("SPECPLUG_"))
    command = [config.command(1)[0], "serve", *words[len(variables) :], "--port", "1"]
    env = {**config.variables(), **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    stated = done.stdout + done.stderr
    assert stated.count(last.removeprefix("error: ")) == 1
    assert "Traceback" not in stated
    return last


@pytest.mark.parametrize(
    "case", ["name of a setting", *(pytest.param(each, marks=pytest.mark.slow) for each in ("broken file", "switch"))]
)
def test_a_server_ends_with_what_doctor_says(answers, case):
    assert last_line(MISTAKES[case][0]) == f"error: {answers[case]}"


def test_a_server_ends_with_what_its_worker_says():
    last = last_line(section(trace={"path": "/dev/null/trace"}))
    assert last.startswith("error: /dev/null/trace: cannot write the trace; found ")
