"""The dashboard and `specplug watch` on SGLang; see `WatchingSuite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.server import Server
from tests.engines.suites.operations import ADMIN, KEY
from tests.engines.suites.watching import WatchingSuite, settings


class TestWatching(WatchingSuite):
    name, key = "sglang", ADMIN

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        keys = {"api_key": KEY, "admin_api_key": ADMIN}
        return serve("SPECPLUG", name="watched", settings=settings(root), enable_metrics=True, **keys)
