"""A short soak of a real `vllm serve`, the one of `test_server`; see `SoakSuite`."""

from __future__ import annotations

import pytest

from tests.engines.suites.server import SETTINGS
from tests.engines.suites.soak import SoakSuite
from tests.engines.vllm.test_server import baseline, server  # noqa: F401 - fixtures


class TestSoak(SoakSuite):
    name = "vllm"


@pytest.mark.slow  # V2 takes its time in Triton's interpreter
class TestSoakOfV2(SoakSuite):
    name, tokens = "vllm-v2", 12

    @pytest.fixture(scope="class")
    def server(self, serve):
        return serve("v2", SETTINGS, anew=True, name="v2 soak", endpoints=True)
