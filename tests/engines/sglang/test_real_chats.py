"""SmolLM2 on SGLang's server, through its chat template."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import real_models
from tests.engines.server import Server
from tests.engines.suites.real_chats import RealChats

SETTINGS = {"policy": "fixed", "faults": {"host_deadline_ms": None}}  # stand-ins of kernels are slow


@pytest.fixture(scope="session")
def real_server(serve: Callable[..., Server]) -> Server:
    given = {"model_path": real_models.small(), "tool_call_parser": "qwen25", "context_length": 1024}
    return serve("SPECPLUG", name="smollm2", settings=SETTINGS, **given)


class TestRealChats(RealChats):
    """SGLang names the parser `qwen25`."""

    arguments = "custom_params"
