"""The dashboard and `specplug watch` on vLLM; see `WatchingSuite`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.launch import ROOT
from tests.engines.server import Server
from tests.engines.suites.operations import KEY
from tests.engines.suites.watching import PICTURE, WatchingSuite, settings
from tests.prometheus import GRAFANA


class TestWatching(WatchingSuite):
    name = "vllm"

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("v1", settings(root), name="watched", api_key=KEY, in_process=True)

    def test_the_dashboard_is_drawn_without_grafana(self, prometheus, tmp_path):
        picture = Path(PICTURE or tmp_path / "dashboard.png").absolute()
        python = ROOT / ".venv" / "bin" / "python"  # the core's environment, which has matplotlib
        command = [python, GRAFANA / "draw.py", prometheus.url, picture, "--minutes", "1.4" if PICTURE else "0.2"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 150_000


@pytest.mark.slow  # V2 takes its time in Triton's interpreter
class TestWatchingV2(WatchingSuite):
    name = "vllm"

    @pytest.fixture(scope="class")
    def server(self, serve: Callable[..., Server], root: Path) -> Server:
        return serve("v2", settings(root), name="watched V2", api_key=KEY, in_process=True)
