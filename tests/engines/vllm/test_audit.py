"""`specplug audit` on real vLLM: the real thing passes, and planted mistakes fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specplug.audit.sampled import Sampled
from specplug.audit.texts import Greedy, Logprobs
from tests.engines.auditing import audit, statuses
from tests.engines.engines import Engine
from tests.engines.server import Server
from tests.engines.suites.chats import ChatSuite, scripted_model
from tests.engines.vllm import auditing
from tests.engines.vllm.conftest import NGRAM

__all__ = ["scripted_model"]

SAMPLES = 60


@contextmanager
def planted(engine: Engine, plant: Callable[..., Any]) -> Iterator[None]:
    """Plant a mistake in an engine's process, and take it back."""
    engine.call(plant)
    try:
        yield
    finally:
        engine.call(auditing.restore)


def test_v1_passes(v1, baseline_v1):
    report = audit(v1, baseline_v1)
    assert report.passed, report
    assert report.drafts is not None
    assert report.drafts.accepted > 100
    assert report.drafts.rejected > 20


def test_v1_samples_by_the_controls_distribution(v1, baseline_v1):
    report = audit(v1, baseline_v1, Sampled(SAMPLES))
    assert report.passed, report


@pytest.mark.parametrize("plant", [auditing.swap_rows, auditing.shift_slots, auditing.accept_all])
def test_v1_with_a_mistake_fails(v1, baseline_v1, plant):
    with planted(v1, plant):
        report = audit(v1, baseline_v1, Greedy())
    assert statuses(report) == {"greedy": "failed"}
    assert report.findings[0].examples


def test_v2_with_async_scheduling_passes(v2_async, baseline_v1):
    """The control is V1, whose logits differ by rounding only."""
    report = audit(v2_async, baseline_v1, Greedy(), Logprobs())
    assert report.passed, report


@pytest.mark.slow  # hundreds of samples in Triton's interpreter
def test_v2_with_async_scheduling_samples_by_the_controls_distribution(v2_async, baseline_v1):
    report = audit(v2_async, baseline_v1, Sampled(SAMPLES))
    assert report.passed, report


@pytest.fixture(scope="session")
def scripted_server(serve: Callable[..., Server], scripted_model: str) -> Server:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    return serve("v1", NGRAM, name="scripted", endpoints=True, in_process=True, model=scripted_model, **parsers)


class TestChats(ChatSuite):
    """vLLM's parsers."""
