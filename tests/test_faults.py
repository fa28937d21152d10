"""The circuit breaker around one plug-in."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specplug.errors import ContractError, PluginError, quote, text_of
from specplug.faults import FaultGuard, LateDraft, status_of
from specplug.plugins.specs import PolicySpec
from specplug.steps.job_thread import JobThread

OFF = False
ON = True


def works() -> None:
    """Do nothing wrong."""


def failing(error: BaseException):
    def action() -> None:
        raise error

    return action


breaks = failing(ValueError("planted"))


def steps(guard: FaultGuard, actions) -> list[bool]:
    """Run one step per action; return in which of them the plug-in was let in."""
    admitted = []
    for action in actions:
        admitted.append(guard.admits_step())
        if admitted[-1]:
            guard.step(action)
    return admitted


@pytest.fixture
def events():
    return []


@pytest.fixture
def guard(events):
    return FaultGuard("mine", max_consecutive=2, cooldown_steps=3, sink=lambda name, kind: events.append((name, kind)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("planted"), "raised"),
        (TimeoutError("planted"), "raised"),
        (ContractError("planted"), "malformed"),
        (LateDraft(), "late"),
    ],
)
def test_faults_are_counted_by_kind(guard, events, error, kind):
    assert guard.step(failing(error)) is False
    assert guard.call(failing(error)) is False
    assert guard.counts[kind] == 2
    assert events[:2] == [("mine", kind)] * 2


def refuse(*_args):
    raise ZeroDivisionError("of the object's own")


class Hostile(BaseException):
    """An exception whose every method raises, those that read its attributes included."""

    __str__ = __repr__ = __getattribute__ = __del__ = refuse


class HostileContractError(ContractError):
    __str__ = refuse


class HostileText(str):
    """A string that can neither be shown, formatted nor looked up."""

    __str__ = __repr__ = __format__ = __hash__ = __len__ = refuse


class Unshown:
    __repr__ = refuse


class HostileInterrupt(KeyboardInterrupt):
    __str__ = refuse


class HostileAttributes(ValueError):
    __notes__ = __cause__ = __traceback__ = property(refuse)


@pytest.fixture
def unraisable(monkeypatch):
    """What Python does with an exception in `__del__`: nothing but to show it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


@pytest.mark.usefixtures("unraisable")
@pytest.mark.parametrize("kind", [Hostile, HostileContractError, HostileInterrupt, HostileAttributes])
def test_an_exception_whose_own_methods_raise_is_contained(guard, caplog, kind):
    def action():
        raise kind(HostileText("\ud800"))

    assert guard.step(action) is False
    assert guard.call(action) is False
    assert sum(guard.counts.values()) == 3
    assert kind.__name__ in caplog.text


@pytest.mark.parametrize("kind", [ValueError, ContractError, LateDraft, SystemExit])
def test_where_each_rank_drafts_the_first_fault_ends_the_process(events, caplog, kind):
    outer, inner = (FaultGuard(name, sink=lambda *it: events.append(it), contains=False) for name in ("outer", "inner"))
    with pytest.raises(SystemExit) as caught:
        outer.step(lambda: inner.call(failing(kind("planted"))))
    assert caught.value.code == 1
    assert [name for name, _ in events] == ["inner", "outer"]
    assert "CRITICAL" in caplog.text
    assert "its drafts would differ from those of the other ranks" in caplog.text
    assert outer.step(works), "a step without a fault"


@pytest.mark.usefixtures("unraisable")
@pytest.mark.parametrize("kind", [Hostile, HostileInterrupt])
def test_a_worker_survives_it(kind):
    def job():
        raise kind

    worker = JobThread("test")
    for done in [worker.submit(job), worker.submit(works)]:
        assert FaultGuard("mine").call(done.result) is (done.done() and done.exception() is None)
    worker.stop()


def test_texts_of_objects_are_short_and_can_be_encoded():
    assert text_of(HostileText("x")) == text_of(HostileText("x"), repr) == "<HostileText without a text>"
    assert text_of("\ud800") == r"\ud800"
    assert len(text_of("x" * 10**6)) < 10**4
    assert str(ContractError.build("wrong", found=HostileText("x"))) == "wrong; found <HostileText without a text>"
    assert quote({"a": [HostileText("x"), Hostile]}).startswith("{'a': ['x', ")
    assert quote([Unshown()]) == "<list without a text>"


@pytest.mark.parametrize("status", [refuse, lambda: {"x": {1, 2}}, lambda: 7, lambda: {HostileText("x"): object()}])
def test_a_status_that_fails_is_reported(status):
    plugin = SimpleNamespace(status=status)
    assert list(status_of("mine", plugin)) == ["error"]


def test_a_spec_has_a_plain_name():
    spec = PolicySpec(name=HostileText("mine"), factory="a:b", summary=HostileText("does it"))
    assert type(spec.name) is type(spec.summary) is str
    assert f"{spec.name}: {spec.summary}" == "mine: does it"
    with pytest.raises(PluginError, match="a policy: name is not a string; found 7"):
        PolicySpec(name=7, factory="a:b", summary="")


class PanicException(BaseException):
    """Derives from `BaseException`, as a panic in Rust that PyO3 hands on does."""


@pytest.mark.parametrize("error", [PanicException("index 7"), SystemExit(1), GeneratorExit(), asyncio.CancelledError()])
def test_no_exception_of_a_plug_in_ends_the_engine(guard, caplog, error):
    assert guard.step(failing(error)) is False
    assert guard.counts == {"raised": 1}
    assert type(error).__name__ in caplog.text


def test_control_c_passes_through(guard):
    with pytest.raises(KeyboardInterrupt):
        guard.step(failing(KeyboardInterrupt()))
    assert not guard.counts


def test_only_the_main_thread_can_be_interrupted(guard):
    thread = threading.Thread(target=guard.step, args=[failing(KeyboardInterrupt())])
    thread.start()
    thread.join()
    assert guard.counts == {"raised": 1}


@contextmanager
def handling(signum, handler):
    """Handle a signal for a while."""
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


class Shutdown:
    """An engine that ends by `SystemExit` on a signal, whatever runs then."""

    def on_signal(self, _signum, _frame):
        self.leave()

    def leave(self):
        raise SystemExit(0)


@pytest.mark.parametrize("handler", [Shutdown().on_signal, lambda *_: Shutdown().leave()])
def test_a_signal_that_ends_the_engine_passes_through(guard, handler):
    with handling(signal.SIGUSR1, handler):
        with pytest.raises(SystemExit):
            guard.step(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        assert not guard.counts
        assert guard.step(failing(SystemExit(0))) is False


def test_the_first_fault_of_each_kind_is_logged_with_the_name_of_the_plug_in(guard, caplog):
    with caplog.at_level(logging.WARNING, "specplug"):
        for _ in range(5):
            guard.call(breaks)
            guard.call(failing(LateDraft()))
            guard.call(failing(ContractError("of shape (3,)")))
    messages = [record.getMessage() for record in caplog.records]
    assert all(message.startswith("mine: ") for message in messages)
    for text in ("it raised ValueError: planted", "its draft is late", "of shape (3,)", "switched off for 3 steps"):
        assert sum(text in message for message in messages) == 1, messages
    assert len(messages) == 4
    assert sum("Traceback" in message for message in messages) == 1, "of what it raised"


@pytest.mark.parametrize(
    ("actions", "admitted", "counts"),
    [
        pytest.param([breaks, works, breaks], [ON] * 3, {"raised": 2}, id="not in a row"),
        pytest.param([breaks, breaks], [ON, ON], {"raised": 2, "switched off": 1}, id="in a row"),
        pytest.param(
            [breaks, breaks, *[works] * 5],
            [ON, ON, OFF, OFF, OFF, ON, ON],
            {"raised": 2, "switched off": 1, "came back": 1},
            id="the cool-down is counted in steps and ends in a trial",
        ),
        pytest.param(
            [*[breaks] * 7, *[works] * 3],
            [ON, ON, OFF, OFF, OFF, ON, OFF, OFF, OFF, ON],
            {"raised": 3, "switched off": 2, "came back": 1},
            id="a fault on trial switches it off again at once",
        ),
        pytest.param(
            [breaks, breaks, *[works] * 4, breaks, works, breaks, works],
            [ON, ON, OFF, OFF, OFF, *[ON] * 5],
            {"raised": 4, "switched off": 1, "came back": 1},
            id="after a good trial the record is clean",
        ),
    ],
)
def test_it_is_switched_off_after_faults_in_a_row_and_tried_again(guard, events, actions, admitted, counts):
    assert steps(guard, actions) == admitted
    assert guard.counts == counts
    assert guard.is_off == ("switched off" in counts and "came back" not in counts)
    assert Counter(kind for _, kind in events) == counts


def test_a_cool_down_of_one_step_is_one_step():
    guard = FaultGuard("mine", max_consecutive=1, cooldown_steps=1)
    assert steps(guard, [breaks, works, works, works]) == [ON, OFF, ON, ON]


def test_only_the_main_work_ends_a_run_of_faults(guard):
    """A successful observe does not reset the faults of a failing propose."""
    guard.step(breaks)
    guard.call(works)
    guard.step(breaks)
    assert guard.is_off


def test_a_fault_while_it_is_off_is_counted_and_does_not_prolong_the_cool_down(guard):
    steps(guard, [breaks, breaks, works])
    guard.call(breaks)
    guard.call(breaks)
    assert guard.counts == {"raised": 4, "switched off": 1}
    assert steps(guard, [works] * 3) == [OFF, OFF, ON]


def raised_directly() -> None:
    raise ValueError("planted")


def raised_by_a_future() -> None:
    """The future holds the exception, whose traceback holds this frame, which holds the future."""
    future: Future[None] = Future()
    future.set_exception(ValueError("planted"))
    future.result()


def raised_because_of_another() -> None:
    try:
        raised_by_a_future()
    except ValueError as error:
        raise LateDraft("planted") from error


def raised_after_another() -> None:
    try:
        raised_by_a_future()
    except ValueError:
        raise ContractError("planted")  # noqa: B904


@pytest.mark.parametrize(
    "action", [raised_directly, raised_by_a_future, raised_because_of_another, raised_after_another]
)
def test_a_contained_fault_keeps_none_of_the_steps_tensors(action):
    """Else logits of a large vocabulary stay until the next full garbage collection, on a GPU too."""

    def step() -> weakref.ref[Tensor]:
        logits = torch.zeros(2)
        assert not FaultGuard("x").call(action)
        return weakref.ref(logits)

    gc.collect()
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()
