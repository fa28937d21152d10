"""Launch lines are read as a shell would, assigned to an engine, and resolved by its code; errors of a start."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from specplug.corpus.store import Store
from specplug.errors import EngineError, SpecplugError
from specplug.operator import launches
from specplug.operator.contained import isolated_process
from specplug.operator.startup import require_startable
from specplug.plugins.registry import Owner, Registry, default_registry
from specplug.plugins.specs import CheckResult, ProposerSpec, hookimpl
from specplug.settings import Settings
from specplug.text.tokenizers import load_tokenizer
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


def resolved(arguments: list[str]) -> launches.Launch | None:
    """An engine that prints, logs, sets a variable and a handler, and may leave in several ways."""
    print("noise")
    logging.getLogger("specplug").warning("lowered")
    logging.basicConfig(level="DEBUG", force=True)
    os.environ[f"SET_BY_ENGINE_{len(os.environ)}"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.excepthook = lambda *_: None
    match arguments[0]:
        case "fail":
            raise ValueError("no such model")
        case "ours":
            raise EngineError.build("not on this machine", who="adapter")
        case "wrapped":
            raise ValueError("as the engine says it") from EngineError.build("not on this machine", who="adapter")
        case "usage":
            print("usage: engine\nengine: error: no such flag", file=sys.stderr)
            sys.exit(2)
        case "help":
            sys.exit(0)
        case "die":
            sys.exit("7")
        case "none":
            return None
    warning = CheckResult("warn", "slow", "Hurry")
    return launches.Launch(" ".join(arguments), {"variable": os.environ["VARIABLE"]}, (warning,))


COMMAND = launches.ServerCommand(
    engine="Engine",
    package="engine",
    resolved=resolved,
    arguments_in=lambda words: words[1:] if words[0] == "engine" else None,
    expected="engine WORDS",
    enabling="",
)


def test_the_engines_own_code_answers(capfd):
    logged = CheckResult("warn", "lowered")
    expected = launches.Launch("a b c", {"variable": "x"}, (CheckResult("warn", "slow", "Hurry"), logged))
    assert COMMAND.launch("VARIABLE=x engine a 'b c'") == expected
    assert COMMAND.launch("engine none") is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("engine fail", "--launch: Engine does not accept the line; found ValueError: no such model"),
        ("engine ours", "adapter: not on this machine"),
        ("engine wrapped", "adapter: not on this machine"),
        ("engine usage", "--launch: Engine does not accept the line; found engine: error: no such flag"),
        ("engine help", "--launch: Engine does not accept the line; found the line asks for help only"),
        ("engine die", "--launch: Engine does not accept the line; found noise"),
        ("other a", "--launch: not a launch line; found 'other a'; expected engine WORDS"),
    ],
)
def test_why_a_server_would_not_start_is_stated(line, message):
    with pytest.raises(SpecplugError) as caught:
        COMMAND.launch(line)
    assert str(caught.value) == message


@pytest.mark.parametrize("line", ["VARIABLE=x engine a", "engine fail", "engine usage"])
def test_the_engine_leaves_the_tools_process_as_it_was(line):
    def state():
        root = logging.getLogger()
        handler = signal.getsignal(signal.SIGTERM)
        return dict(os.environ), handler, sys.excepthook, sys.stdout, sys.stderr, root.level, root.handlers[:]

    before = state()
    with contextlib.suppress(SpecplugError):
        COMMAND.launch(line)
    assert state() == before
    assert logging.getLogger("specplug").level == logging.NOTSET


def test_what_c_code_prints_is_no_output_of_the_tool(capfd):
    with isolated_process({}):
        os.write(1, b"from C")
    assert capfd.readouterr() == ("", "from C")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proposer": "crosstok"}, "no draft model is named"),
        ({"extra_proposers": ["crosstok"]}, "no draft model is named"),
        ({"proposer": "hybrid"}, "no draft model is named"),
        ({"proposer": "crosstok", "options": {"crosstok": {"model": "/absent"}}}, "found no such folder"),
        ({"proposer": "hybrid", "options": {"crosstok": {"model": "/absent"}}}, "found no such folder"),
        ({"policy": "batch+fixed", "options": {"fixed": {"gamma": 16}}}, "at most num_speculative_tokens, 15"),
        ({"proposer": "retrieval", "corpora": {"store": "/dev/null"}}, "cannot become a corpus store; found a file"),
    ],
)
def test_what_workers_would_refuse_is_refused_before_anything_is_loaded(settings, message):
    with pytest.raises(SpecplugError, match=message):
        require_startable(Settings(**settings), "cpu")


def test_what_a_worker_alone_knows_is_left_to_it():
    def memory(context):
        return context.target_config.hidden_size

    require_startable(Settings(proposer="ngram", extra_proposers=["retrieval"]), "cpu")
    require_startable(Settings(proposer="hybrid", options={"hybrid": {"model": "engine"}}), "cpu")
    registry = default_registry()
    spec = dataclasses.replace(registry.get(ProposerSpec, "ngram"), memory=memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "get", lambda self, kind, name: spec)
        require_startable(Settings(proposer="ngram"), "cpu")


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


def test_a_proposer_without_corpora_to_draft_from_says_how_to_get_some(tmp_path):
    def advice(proposer, **corpora):
        options = {"hybrid": {"lookup": "retrieval", "model": "engine"}}
        settings = Settings(proposer=proposer, corpora=corpora, options=options)
        return [(found.summary, found.remedy) for found in launches.corpora_advice(settings, default_registry())]

    assert advice("ngram", store=str(tmp_path)) == []
    ((unset, _),) = advice("retrieval")
    assert unset == "the setting corpora.store names no corpus store, so retrieval drafts from no corpora"
    ((absent, remedy),) = advice("hybrid", store=str(tmp_path))
    assert absent == f"{tmp_path}: no corpus store yet, so retrieval drafts from no corpora"
    assert remedy == f"`specplug corpus build {tmp_path} FOLDER --tokenizer MODEL` makes one"
    Store.create(tmp_path, load_tokenizer("tiny").fingerprint)
    assert advice("retrieval", store=str(tmp_path)) == []


def test_settings_at_their_defaults_are_not_repeated():
    assert launches.differing(Settings()) == {}
    assert launches.differing(Settings(mode="off")) == {"mode": "off"}


PROGRAM = """
import builtins
import multiprocessing
import sys
from specplug.errors import SettingsError
from specplug.operator.startup import expect_children, message_only, told_by_parent


def start(target, how):
    children = [multiprocessing.get_context("spawn").Process(target=target, args=[how]) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    raise RuntimeError(f"children ended with {[child.exitcode for child in children]}")


def engine(how):
    with told_by_parent():
        start(fail, how)


def fail(how):
    with told_by_parent(direct=how == "indirect"):
        raise SettingsError("adapter: wrong") if how != "other child" else KeyError("of somebody else's")


if __name__ == "__main__":
    how = sys.argv[1]
    if "child" in how or how in ("caught", "indirect", "another engine"):
        if how == "notebook's child":
            builtins.__IPYTHON__ = True
        expect_children()
        try:
            start(engine if how in ("grandchildren", "indirect") else fail, how)
        except RuntimeError:
            if how == "caught":
                sys.exit(1)
            if how != "another engine":
                raise
        expect_children(ours=False)
        raise KeyError("of somebody else's")
    try:
        if how == "within":
            expect_children()
            fail(how)
        with message_only(), message_only():
            raise SettingsError("adapter: wrong")
    except SettingsError as error:
        if how == "wrapped":
            raise ValueError("as the engine's users know it") from error
        if how != "other":
            raise
    raise KeyError("of somebody else's")
"""


@pytest.fixture
def ends(tmp_path):
    """How a program ends that specplug's errors, or others, are raised in."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    files = tmp_path / "files"
    files.mkdir()

    def run(how: str, **variables: str) -> str:
        env = {**os.environ, "TMPDIR": str(files), **variables}
        done = subprocess.run([sys.executable, str(program), how], capture_output=True, text=True, env=env)
        assert (done.returncode, done.stdout) == (1, "")
        assert not list(files.iterdir())
        return done.stderr

    return run


@pytest.mark.parametrize("how", ["own", "wrapped", "within", "children", "grandchildren", "caught"])
def test_specplugs_own_errors_are_one_message(ends, how):
    assert ends(how) == "error: adapter: wrong\n"


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("other", "KeyError"),
        ("other child", "RuntimeError"),
        ("another engine", "KeyError"),
        ("notebook's child", "RuntimeError"),
        ("indirect", "RuntimeError"),
    ],
)
def test_others_keep_their_traceback(ends, how, last):
    lines = ends(how).splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith(last)


@pytest.mark.parametrize(("how", "tracebacks"), [("own", 1), ("children", 3)])
def test_a_traceback_is_there_for_whoever_debugs(ends, how, tracebacks):
    assert ends(how, SPECPLUG_DEBUG="1").count("Traceback") == tracebacks
