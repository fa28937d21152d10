"""`specplug bench` measures a real SGLang server, and leaves it as it was."""

from __future__ import annotations

import json

import pytest

from tests.engines.benchmark import assert_measured, bench


@pytest.mark.slow  # it runs beside vLLM, and is one for both
def test_a_server_is_measured_in_both_modes_and_put_back(serve, tmp_path):
    server = serve("SPECPLUG", anew=True, name="examples")
    assert_measured(bench(server, tmp_path))
    (engine,) = json.loads(server.get("/specplug/status"))["engines"]
    assert engine["scheduler"]["control"]["mode"] == "on"
