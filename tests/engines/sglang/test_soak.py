"""A short soak of a real SGLang server, the one of `test_server`; see `SoakSuite`."""

from __future__ import annotations

from tests.engines.sglang.test_server import baseline, server  # noqa: F401 - fixtures
from tests.engines.suites.soak import SoakSuite


class TestSoak(SoakSuite):
    name = "sglang"
