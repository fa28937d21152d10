"""SmolLM2 on `vllm serve`, on the V1 runner, through its chat template."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import real_models
from tests.engines.server import Server
from tests.engines.suites.real_chats import MESSAGES, RealChats
from tests.engines.vllm.conftest import NGRAM


@pytest.fixture(scope="session")
def real_server(serve: Callable[..., Server]) -> Server:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return serve("v1", NGRAM, name="smollm2", endpoints=True, model=real_models.small(), in_process=True, **parsers)


class TestRealChats(RealChats):
    """vLLM names the parser `hermes`."""

    arguments = "vllm_xargs"

    def test_a_seed_gives_the_text_without_speculation(self, real_server):
        texts = []
        for fields in ({}, {}, {"specplug_enabled": False}):
            answer = real_server.client().chat.completions.create(
                model=real_server.model,
                messages=MESSAGES[1:2],
                max_tokens=32,
                temperature=0.7,
                seed=5,
                extra_body={"vllm_xargs": fields} if fields else {},
            )
            texts.append(answer.choices[0].message.content)
        assert texts[0] == texts[1] == texts[2]
        assert texts[0]
