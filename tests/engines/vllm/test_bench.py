"""`specplug bench` measures a real vLLM server, and leaves it as it was."""

from __future__ import annotations

import json

from tests.engines.benchmark import assert_measured, bench


def test_a_server_is_measured_in_both_modes_and_put_back(v1_server, tmp_path):
    assert_measured(bench(v1_server, tmp_path))
    (engine,) = json.loads(v1_server.get("/specplug/status"))["engines"]
    assert engine["scheduler"]["control"]["mode"] == "on"
