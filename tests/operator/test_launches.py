"""Launch lines are read as a shell would, assigned to an engine, and answered by another process; start-up errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from specplug.errors import EngineError
from specplug.operator import launches
from specplug.plugins.registry import Owner, Registry, default_registry
from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.settings import Settings
from specplug.types.caps import ProposerCaps


def test_lines_are_read_as_a_shell_would():
    line = "A=1 B='x y' engine serve org/model --flag '{\"a\": 1}' \\\n  --other"
    words = ["engine", "serve", "org/model", "--flag", json.dumps({"a": 1}), "--other"]
    assert launches.split(line) == ({"A": "1", "B": "x y"}, words)


@pytest.mark.parametrize("line", ["A=1 engine serve", "env A=1 engine serve", "/usr/bin/env A=1 engine serve"])
def test_variables_stand_in_front_as_a_shell_takes_them(line):
    assert launches.split(line) == ({"A": "1"}, ["engine", "serve"])


def test_a_line_with_an_open_quote_is_refused():
    with pytest.raises(EngineError, match="not a launch line"):
        launches.split("engine serve 'model")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("engine serve m", True),
        ("A=1 /opt/bin/engine serve m", True),
        ("uv run engine bench", True),
        ("python -m engine.server --flag", True),
        ("python3 -m engine", True),
        ("engine serve 'open", True),
        ("engine", False),
        ("engine --help", False),
        ("other serve m", False),
        ("other serve /models/engine --port 1", False),
        ("other serve --model /models/engine", False),
        ("python -m engines.server", False),
        ("python engine.py", False),
        ("", False),
    ],
)
def test_engines_know_their_own_lines(line, expected):
    assert launches.names_engine(line, "engine") is expected


ANSWERS = """
import json, os, sys
from specplug.errors import EngineError
from specplug.operator.launches import Launch, tell

def found(arguments):
    print("noise")
    if arguments == ["fail"]:
        raise ValueError("no such model")
    if arguments == ["ours"]:
        raise EngineError.build("not on this machine", who="adapter")
    if arguments == ["none"]:
        return None
    if arguments == ["usage"]:
        sys.stderr.write("usage: engine\\nengine: error: no such flag\\n")
        sys.exit(2)
    if arguments == ["help"]:
        sys.exit(0)
    if arguments == ["die"]:
        os._exit(7)
    return Launch(" ".join(arguments), {"variable": os.environ["VARIABLE"]}, ())

tell(found, sys.argv[1])
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    (tmp_path / "an_engines_answers.py").write_text(ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "an_engines_answers"


def command(module: str) -> launches.ServerCommand:
    return launches.ServerCommand(
        engine="Engine", package="engine", module=module, arguments_in=lambda words: words, expected="", enabling=""
    )


def test_another_process_answers(module):
    assert command(module).ask("VARIABLE=x a 'b c'") == launches.Launch("a b c", {"variable": "x"}, ())
    assert command(module).ask("none") is None


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("fail", "ValueError: no such model"),
        ("ours", "adapter: not on this machine"),
        ("usage", "engine: error: no such flag"),
        ("help", "the line asks for help"),
        ("die", "exit code 7"),
    ],
)
def test_why_there_is_no_answer_is_stated(module, argument, found):
    with pytest.raises(EngineError, match=f"Engine does not accept the line; found {found}"):
        command(module).ask(argument)


def test_a_process_that_stays_silent_is_given_up(monkeypatch):
    def silent(*args, **kwargs):
        raise subprocess.TimeoutExpired("python", kwargs["timeout"])

    monkeypatch.setattr(subprocess, "run", silent)
    with pytest.raises(EngineError, match="Engine gave no answer; found 5 s of silence"):
        command("module").ask("", patience=5)


@pytest.mark.parametrize(
    ("enabled", "found"),
    [
        (["ngram"], ()),
        (["ngram", "ngram-reference"], ("ngram-reference",)),
        (["ngram-reference"], ("ngram-reference",)),
        (["absent"], ()),
    ],
)
def test_what_a_step_waits_for_follows_from_what_proposers_declare(enabled, found):
    wanted = Settings(proposer=enabled[0], extra_proposers=enabled[1:])
    assert launches.awaited_proposers(wanted, default_registry(), "cuda") == found


@pytest.mark.parametrize(("device", "found"), [("cpu", ("anywhere",)), ("cuda", ())])
def test_proposers_on_the_host_depend_on_the_device(device, found):
    spec = ProposerSpec(name="anywhere", factory=len, summary="", caps=lambda d: ProposerCaps(needs_host=d == "cpu"))
    registry = Registry()
    plugin = SimpleNamespace(specplug_register_proposers=hookimpl(lambda register: register(spec)))
    registry.add(plugin, Owner("main", "acme", "1"))
    assert launches.awaited_proposers(Settings(proposer="anywhere"), registry, device) == found


def test_settings_at_their_defaults_are_not_repeated():
    assert launches.differing(Settings()) == {}
    assert launches.differing(Settings(mode="off")) == {"mode": "off"}


@pytest.mark.parametrize(("line", "known"), [("one serve m", True), ("two serve m", False), ("", True)])
def test_doctor_says_when_no_check_knows_a_line(monkeypatch, line, known):
    from typer.testing import CliRunner

    from specplug import CheckResult, hookimpl
    from specplug.plugins.registry import Owner, Registry
    from specplug.plugins.specs import CheckSpec
    from specplug.tools.cli.app import app

    def check(settings, launch):
        return [CheckResult("ok", "mine")] if launches.names_engine(launch, "one") else []

    plugin = ModuleType("plugin")
    specs = CheckSpec(name="one launch", factory=check, summary="", takes_launch=True)
    plugin.specplug_register_checks = hookimpl(lambda register: register(specs))
    registry = Registry()
    registry.add(plugin, Owner("main", "acme", "1"))
    monkeypatch.setattr(sys.modules["specplug.tools.cli.doctor"], "default_registry", lambda: registry)
    done = CliRunner().invoke(app, ["doctor", "--json", "--launch", line])
    found = [each["summary"] for each in json.loads(done.stdout)["checks"] if each["check"] == "launch"]
    expected = f"no check knows the launch line {line!r}; those that look at one: one launch"
    assert found == ([] if known else [expected])


PROGRAM = """
import sys
from specplug.errors import SettingsError
from specplug.operator.startup import show_message_only

show_message_only()
show_message_only()
try:
    raise SettingsError("adapter: wrong")
except SettingsError as error:
    match sys.argv[1]:
        case "own":
            raise
        case "wrapped":
            raise ValueError("as the engine's users know it") from error
raise KeyError("of somebody else's")
"""


def ends(how: str, **variables: str) -> str:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.parametrize("how", ["own", "wrapped"])
def test_specplugs_own_errors_are_one_message(how):
    assert ends(how) == "error: adapter: wrong\n"


def test_others_keep_their_traceback():
    stated = ends("other")
    assert stated.startswith("Traceback")
    assert stated.endswith('KeyError: "of somebody else\'s"\n')


def test_a_traceback_is_there_for_whoever_debugs():
    assert ends("own", SPECPLUG_DEBUG="1").startswith("Traceback")
