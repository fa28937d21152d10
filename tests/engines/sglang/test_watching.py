"""The dashboard and `specplug watch` on SGLang; see `WatchingSuite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specplug.operator.access import KEY_VARIABLE
from tests.engines.server import Server
from tests.engines.sglang.test_server import assert_guarded
from tests.engines.suites.operations import ADMIN
from tests.engines.suites.watching import WatchingSuite, settings


class TestWatching(WatchingSuite):
    name, key = "sglang", ADMIN

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        key = {KEY_VARIABLE: ADMIN}
        return serve("SPECPLUG", name="watched", settings=settings(root), enable_metrics=True, environment=key)

    def test_an_operators_key_alone_opens(self, server: Server) -> None:
        for client in ({}, {"Authorization": "Bearer sesame"}):
            assert_guarded(server, 401, client, {"Authorization": f"Bearer {ADMIN}"})
