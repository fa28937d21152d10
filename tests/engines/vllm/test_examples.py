"""The examples run as they stand, against a real vLLM; see `tests.engines.suites.examples`."""

from __future__ import annotations

import pytest

from tests.engines.suites.examples import ExamplesSuite
from tests.engines.vllm.conftest import NGRAM
from tests.engines.vllm.launch import configuration


class TestExamples(ExamplesSuite):
    engine = "vllm"
    environment = configuration("v1", in_process=False).variables()

    @pytest.fixture(scope="class")
    def server(self, serve):
        return serve("v1", NGRAM, name="examples", endpoints=True, in_process=True)
