"""The dashboard and `specplug watch` on vLLM; see `WatchingSuite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.server import Server
from tests.engines.suites.operations import KEY
from tests.engines.suites.watching import WatchingSuite, settings


class TestWatching(WatchingSuite):
    name = "vllm"

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("v1", settings(root), name="watched", api_key=KEY, in_process=True)


@pytest.mark.slow  # V2 takes its time in Triton's interpreter
class TestWatchingV2(WatchingSuite):
    name = "vllm"

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("v2", settings(root), name="watched V2", api_key=KEY, in_process=True)
