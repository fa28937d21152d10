"""The examples run as they stand, against a real vLLM; see `tests.engines.suites.examples`."""

from __future__ import annotations

import importlib

import pytest

from tests.engines.launch import ROOT
from tests.engines.suites.examples import ExamplesSuite
from tests.engines.vllm.launch import configuration


class TestExamples(ExamplesSuite):
    engine, address = "vllm", "http://localhost:8000"
    environment = configuration("v1", in_process=False).variables()

    @pytest.fixture
    def server(self, v1_server):
        return v1_server


def test_the_demo_s_servers_ask_for_a_quarter_of_a_gib(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for launch in importlib.import_module("vllm_demo").launches({}, 8):
        assert launch.command[launch.command.index("--kv-cache-memory-bytes") + 1] == str(256 << 20)
        assert "VLLM_CPU_KVCACHE_SPACE" not in launch.environment  # which would come before it
