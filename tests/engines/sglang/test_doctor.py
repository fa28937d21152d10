"""`specplug doctor` beside a real SGLang: what launch lines come to, found out by SGLang itself."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.sglang.launch import Configuration, configuration

SPECPLUG = Path(sys.executable).parent / "specplug"
NGRAM = '{"proposer": "ngram", "mode": "off"}'


def line_of(config: Configuration) -> str:
    return shlex.join(["python", "-m", "sglang.launch_server", *config.flags(), "--port", "1"])


@pytest.mark.slow  # the parts it puts together have tests of their own
def test_doctor_looks_through_a_launch_line():
    config = configuration("SPECPLUG", environment={"SPECPLUG_CONFIG": NGRAM})
    command = [SPECPLUG, "doctor", "--json", "--launch", line_of(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=config.variables())
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["checks"]
    assert {check["check"] for check in found} == {"sglang launch"}
    assert {check["status"] for check in found} == {"ok"}
    text = "\n".join(check["summary"] for check in found)
    for part in (
        "settings of the launch: mode: off",
        "drafts are chains of up to 8 tokens; overlap scheduling, up to 8 requests at a time (limited by",
        "every draft length from 0 to 8 may be chosen; cpu has no graphs",
        "get no drafts",
    ):
        assert part in text


CASES: dict[str, tuple[str, Configuration]] = {
    "trees": ("", configuration("SPECPLUG", draft_length=5, overlap=False, speculative_eagle_topk=3)),
    "default width": ("", configuration(speculative_algorithm="specplug", max_running_requests=None)),
    "not asked": ("", configuration("NGRAM")),
    "pages": ("", configuration("SPECPLUG", speculative_eagle_topk=4, page_size=16)),
    "no model": ("", configuration("SPECPLUG", model_path="/absent/model")),
    "unknown algorithm": ("", configuration("SPECPLUGG")),
    "no draft model": ('{"proposer": "crosstok"}', configuration("SPECPLUG")),
    "name of a setting": ('{"propser": "ngram"}', configuration("SPECPLUG")),
    "value of an option": ('{"policy": "fixed", "options": {"fixed": {"gamma": 99}}}', configuration("SPECPLUG")),
    "absent file": ("/absent.toml", configuration("SPECPLUG")),
    "absent store": ('{"proposer": "retrieval", "corpora": {"store": "/absent"}}', configuration("SPECPLUG")),
}


def launches(engine: Any, cases: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return what settings and a line come to, by case: None, a launch, or the message of what refuses it."""
    from specplug.errors import SpecplugError
    from specplug_sglang.doctor import COMMAND

    found: dict[str, Any] = {}
    for name, (settings, line) in cases.items():
        try:
            launch = COMMAND.launch(f"SPECPLUG_CONFIG={shlex.quote(settings)} {line}")
            found[name] = None if launch is None else dataclasses.asdict(launch)
        except SpecplugError as error:
            found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def answers(baseline: Engine) -> dict[str, Any]:
    """SGLang's answer to each of `CASES`, in a process that has it imported."""
    cases = {name: (settings, line_of(config)) for name, (settings, config) in CASES.items()}
    return dict(baseline.call(launches, cases=cases))


def test_lines_that_ask_for_something_else_are_not_looked_into(answers):
    assert answers["not asked"] is None


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("trees", ["drafts are trees (--speculative-eagle-topk 3) of up to 5 tokens; synchronous"]),
        ("trees", ["\nSGLang's verification on this device takes the likeliest token"]),
        ("trees", ["limited by --max-running-requests"]),
        ("default width", ["up to 2048 requests (limited by SGLang's default without speculation)"]),
        ("pages", ["REFUSED: ", "trees with pages need flashinfer", "--page-size 16"]),
        ("no model", ["REFUSED: ", "/absent/model"]),
        ("unknown algorithm", ["REFUSED: ", "Unknown speculative algorithm name: SPECPLUGG"]),
        ("no draft model", ["REFUSED: ", "proposer 'crosstok': no draft model is named"]),
        ("name of a setting", ["REFUSED: ", "unknown setting 'propser'; found 'ngram'. Did you mean 'proposer'?"]),
        ("value of an option", ["REFUSED: ", "policy 'fixed': gamma is too large; found 99; expected at most"]),
        ("absent file", ["REFUSED: ", "cannot read the settings file; found No such file"]),
        ("absent store", ["\n/absent: no corpus store yet, so retrieval drafts from no corpora"]),
    ],
)
def test_what_a_line_comes_to(answers, case, parts):
    """What the line leaves open is settled, and what cannot be served is refused by name."""
    found = answers[case]
    if isinstance(found, str):
        text = f"REFUSED: {found}"
    else:
        text = "\n".join([found["line"], *(check["summary"] for check in found["advice"])])
        assert "up to 0 draft tokens" not in text
    assert [part for part in parts if part not in text] == []


@pytest.mark.slow  # a process of its own; tests/adapters/test_doctor.py has the variable
def test_a_line_that_keeps_specplug_out_is_refused():
    config = configuration("SPECPLUG", environment={"SGLANG_PLUGINS": "other"})
    command = [SPECPLUG, "doctor", "--json", "--launch", line_of(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=config.variables())
    (check,) = json.loads(done.stdout)["checks"]
    assert "SGLang does not load specplug" in check["summary"]
    assert "SGLANG_PLUGINS='other'" in check["summary"]


def origins(engine: Any, lines: list[list[str]]) -> list[str]:
    """Return what gave the draft length of servers with such arguments."""
    from sglang.srt.server_args import prepare_server_args

    from specplug.operator.contained import isolated_process
    from specplug_sglang.config import resolved

    found = []
    for arguments in lines:
        with isolated_process({"SPECPLUG_CONFIG": ""}):
            server_args = prepare_server_args(arguments)
            server_args.resolve_once()
            found.append(resolved(server_args).origins["num_speculative_tokens"])
    return found


def test_a_draft_length_that_nobody_gave_has_no_origin(baseline):
    lines = [configuration("SPECPLUG").flags(), configuration(speculative_algorithm="SPECPLUG").flags()]
    found = baseline.call(origins, lines=lines)
    assert found == ["--speculative-num-draft-tokens, which counts one more", "default"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            '{"propser": "ngram"}',
            "unknown setting 'propser'; found 'ngram'. Did you mean 'proposer'?",
            marks=pytest.mark.slow,
        ),
        ('{"trace": {"path": "/dev/null/trace"}}', "/dev/null/trace: cannot write the trace; found "),
    ],
)
def test_a_mistake_ends_the_server_with_one_message(settings, message):
    """The second is a scheduler's."""
    config = configuration("SPECPLUG", environment={"SPECPLUG_CONFIG": settings})
    done = subprocess.run(config.command(1), capture_output=True, text=True, timeout=900, env=config.variables())
    assert done.returncode == 1
    stated = done.stderr + done.stdout
    last = [line for line in done.stderr.splitlines() if line.strip()][-1]
    assert last.startswith("error: "), "the last that the user reads is what is wrong"
    assert message in last
    assert "Traceback" not in stated
    assert stated.count(message) == 1
