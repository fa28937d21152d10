"""SmolLM2 on `vllm serve`, on the V1 runner, through its chat template."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import real_models
from tests.engines.server import Server
from tests.engines.suites.real_chats import RealChats
from tests.engines.vllm.conftest import NGRAM


@pytest.fixture(scope="session")
def real_server(serve: Callable[..., Server]) -> Server:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return serve("v1", NGRAM, name="smollm2", endpoints=True, model=real_models.small(), in_process=True, **parsers)


class TestRealChats(RealChats):
    """vLLM names the parser `hermes`."""

    arguments = "vllm_xargs"
