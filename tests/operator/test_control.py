"""The operator's control: what it allows, what changes it, and which word counts."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from specplug.errors import SettingsError
from specplug.operator import control as control_module
from specplug.operator.control import OperatorControl, Order, parse_order
from specplug.settings import Settings
from specplug.settings.model import ControlSettings


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def control(
    file: Path | None = None, mode: str = "on", poll: float = 1.0, clock: Clock | None = None
) -> OperatorControl:
    watched = ControlSettings(file=None if file is None else str(file), poll_seconds=poll)
    return OperatorControl(Settings(mode=mode, control=watched), clock or Clock())  # type: ignore[arg-type]


def write(file: Path, text: str) -> None:
    """Replace the file in one go, as editors and configuration tools do."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, file)


@pytest.mark.parametrize(("mode", "ceiling"), [("on", None), ("off", 0)])
def test_it_starts_as_the_settings_say(mode, ceiling):
    start = control(mode=mode)
    assert start.ceiling() == ceiling
    state = start.state()
    assert (state["mode"], state["ceiling"], state["set_by"]) == (mode, ceiling, "start-up")


def test_what_is_left_out_of_an_order_stays():
    server = control()
    assert server.set(num_speculative_tokens=4)["ceiling"] == 4
    assert server.set(mode="off")["ceiling"] == 0
    state = server.set(mode="on")
    assert (state["ceiling"], state["num_speculative_tokens"], state["set_by"]) == (4, 4, "request")
    assert server.set(num_speculative_tokens=None)["ceiling"] is None
    assert server.set(num_speculative_tokens=0)["ceiling"] == 0


@pytest.mark.parametrize(
    ("order", "what"),
    [
        ({"mode": "of"}, r"bad value for key 'mode'; found 'of'; expected 'on' or 'off'. Did you mean 'off'\?"),
        ({"num_speculative_tokens": -1}, "'num_speculative_tokens'; found -1; expected greater than or equal to 0"),
        ({"num_speculative_tokens": 257}, "found 257; expected less than or equal to 256"),
        ({"num_speculative_tokens": "4"}, "found '4'; expected a valid integer"),
        ({"num_speculative_tokens": True}, "found True"),
        ({"modes": "off"}, "unknown key 'modes'; found 'off'. Did you mean 'mode'"),
        ({"mode": "of", "modes": "off"}, "2 keys are wrong"),
    ],
)
def test_a_bad_order_is_refused_and_changes_nothing(order, what):
    server = control()
    server.set(num_speculative_tokens=3)
    with pytest.raises(SettingsError, match=what):
        server.set(**order)
    assert server.ceiling() == 3


def test_the_file_is_looked_at_once_per_interval(tmp_path):
    file = tmp_path / "control.json"
    clock = Clock()
    server = control(file, poll=2.0, clock=clock)
    write(file, '{"num_speculative_tokens": 5}')
    clock.now += 1.9
    assert server.ceiling() is None
    clock.now += 0.1
    assert server.ceiling() == 5
    assert server.state()["set_by"] == "control file"


def test_a_file_of_the_same_size_and_time_that_replaces_another_is_seen(tmp_path):
    file = tmp_path / "control.json"
    server = control(file, poll=0.0)
    for limit in (5, 6):
        beside = tmp_path / "beside.json"
        beside.write_text(json.dumps({"num_speculative_tokens": limit}))
        os.utime(beside, ns=(10**18, 10**18))
        os.replace(beside, file)
        assert server.ceiling() == limit


def test_a_file_that_goes_gives_back_the_start(tmp_path):
    file = tmp_path / "control.json"
    write(file, '{"mode": "off"}')
    server = control(file, poll=0.0)
    file.unlink()
    assert server.ceiling() is None
    assert server.state()["set_by"] == "start-up, as the control file is gone"


MALFORMED = {
    "not JSON": ("{mode: off}", "cannot read the control file; found Expecting property name"),
    "half written": ('{"mode": "o', "Unterminated string"),
    "empty": ("", "Expecting value"),
    "no object": ("[1]", r"malformed order; found \[1\]; expected a JSON object"),
    "unknown key": ('{"mdoe": "off"}', "unknown key 'mdoe'.*Did you mean 'mode'"),
    "bad value": ('{"mode": "stop"}', "bad value for key 'mode'; found 'stop'"),
    "too long": (" " * 70_000 + "{}", "more than 65536 bytes"),
    "nested too deeply": ("[" * 60_000, "cannot read the control file"),
}


@pytest.mark.parametrize(("text", "what"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_changes_nothing_and_is_reported_once(tmp_path, caplog, text, what):
    file = tmp_path / "control.json"
    write(file, '{"num_speculative_tokens": 5}')
    server = control(file, poll=0.0)
    write(file, text)
    with caplog.at_level(logging.INFO, logger="specplug"):
        assert [server.ceiling() for _ in range(3)] == [5, 5, 5]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(file) in record.getMessage()
    assert re.search(what, record.getMessage())
    assert re.search(what, server.state()["file_error"])
    write(file, text)
    assert server.ceiling() == 5
    assert len(caplog.records) == 2, "the file has changed"
    write(file, '{"num_speculative_tokens": 6}')
    assert server.ceiling() == 6
    assert server.state()["file_error"] is None


@pytest.mark.parametrize("name", ["stat", "open"])
def test_a_file_that_could_not_be_read_for_a_while_is_read_then(tmp_path, caplog, monkeypatch, name):
    file = tmp_path / "control.json"
    write(file, '{"num_speculative_tokens": 5}')
    server = control(file, poll=0.0)
    write(file, '{"mode": "off"}')

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as planted:
        planted.setattr(*((control_module.os, "stat") if name == "stat" else (Path, "open")), refuse)
        assert [server.ceiling() for _ in range(3)] == [5, 5, 5]
    assert len(caplog.records) == 1, "once"
    assert "Permission denied" in caplog.text
    assert server.ceiling() == 0
    assert server.state()["file_error"] is None


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_plain_file_is_reported_and_never_waited_for(tmp_path, caplog, kind):
    file = tmp_path / "control.json"
    file.mkdir() if kind == "folder" else os.mkfifo(file)
    server = control(file, poll=0.0)
    assert server.ceiling() is None
    assert server.ceiling() is None
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert "expected a plain file" in caplog.text


def test_a_change_is_logged_with_whose_it_is(tmp_path, caplog):
    file = tmp_path / "control.json"
    server = control(file, poll=0.0)
    with caplog.at_level(logging.INFO, logger="specplug"):
        write(file, '{"num_speculative_tokens": 2}')
        server.ceiling()
        server.set(num_speculative_tokens=2)  # nothing new
        server.set(mode="off")
    assert [r.getMessage() for r in caplog.records] == [
        "speculation: mode on, at most 2 draft tokens, by control file",
        "speculation: mode off, at most 2 draft tokens, by request",
    ]


@pytest.mark.parametrize("depth", [50, 800])
def test_deep_nesting_is_refused(depth):
    order = json.loads("[" * depth + "]" * depth)
    for wrong in (order, {"mode": order}, {"a": order}):
        with pytest.raises(SettingsError) as caught:
            parse_order(wrong, "order")
        assert len(str(caught.value)) < 500


class LastWord(RuleBasedStateMachine):
    """In any order of changes, the last one decides the ceiling."""

    folder: Path

    @initialize(mode=st.sampled_from(["on", "off"]))
    def start(self, mode):
        self.file = LastWord.folder / "control.json"
        self.file.unlink(missing_ok=True)
        self.server = control(self.file, mode=mode, poll=0.0)
        self.initial = self.mode = mode
        self.limit: int | None = None
        self.there = False

    @rule(mode=st.sampled_from([None, "on", "off"]), limit=st.none() | st.integers(0, 256), with_limit=st.booleans())
    def order(self, mode, limit, with_limit):
        self.server.set(**({"mode": mode} if mode else {}), **({"num_speculative_tokens": limit} if with_limit else {}))
        self.mode, self.limit = mode or self.mode, limit if with_limit else self.limit

    @rule(order=st.builds(Order, mode=st.sampled_from([None, "on", "off"]), num_speculative_tokens=st.integers(0, 256)))
    def replace_file(self, order):
        write(self.file, order.model_dump_json())
        self.mode = order.mode or self.initial
        self.limit = order.num_speculative_tokens
        self.there = True

    @rule(text=st.sampled_from(["", "{", "[]", '{"mode": 1}']))
    def spoil_file(self, text):
        write(self.file, text)
        self.server.ceiling()  # the file that it replaces may have been new
        self.there = True

    @rule()
    def remove_file(self):
        if self.there:
            self.server.ceiling()
            self.file.unlink()
            self.mode = self.initial
            self.limit = None
            self.there = False

    @invariant()
    def reports_the_last_order(self):
        if hasattr(self, "server"):
            assert self.server.ceiling() == (0 if self.mode == "off" else self.limit)


def test_the_last_word_holds_in_any_order(tmp_path):
    LastWord.folder = tmp_path
    run_state_machine_as_test(LastWord, settings=hypothesis_settings(max_examples=60, deadline=None))
