"""The harness itself: what the tests of engines rely on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine, HostDied, Raised


class HarnessSuite:
    """The engine's class makes engines."""

    def mortal(self, engine: Callable[..., Engine]) -> Engine:
        """Return an engine that nothing else uses."""
        raise NotImplementedError

    def wrong(self, engine: Callable[..., Engine]) -> tuple[Engine, str]:
        """Return an engine that cannot start, and what it says."""
        raise NotImplementedError

    def test_exceptions_arrive_with_type_and_text(self, engine):
        with pytest.raises(Raised, match="told to") as caught:
            self.mortal(engine).call(fail, text="told to")
        assert (caught.value.type, caught.value.text) == ("ZeroDivisionError", "told to")
        assert "in fail" in str(caught.value)

    def test_an_engine_that_ends_or_hangs_is_noticed_and_started_anew(self, engine):
        mortal = self.mortal(engine)
        with pytest.raises(HostDied, match="has ended"):
            mortal.call(end)
        assert mortal.call(process) > 0
        with pytest.raises(HostDied, match="in time"):
            mortal.call(hang, timeout=1.0)

    def test_an_engine_that_cannot_start_says_why(self, engine):
        wrong, why = self.wrong(engine)
        for _ in range(2):  # the second time it is not tried
            with pytest.raises(Raised, match=why):
                wrong.call(process)

    def test_hosts_have_their_own_environment(self, engine):
        mortal = self.mortal(engine)
        assert mortal.call(variable, name="PYTHONPATH") == mortal.configuration.variables()["PYTHONPATH"]


def fail(anything: Any, text: str) -> None:
    raise ZeroDivisionError(text)


def end(anything: Any) -> None:
    os._exit(3)


def hang(anything: Any) -> None:
    time.sleep(60)


def process(anything: Any) -> int:
    return os.getpid()


def variable(anything: Any, name: str) -> str:
    return os.environ[name]
