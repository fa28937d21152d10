"""`specplug audit` on real SGLang: the real thing passes, and planted mistakes fail."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from specplug.audit.sampled import Sampled
from specplug.audit.texts import Greedy
from tests.engines.auditing import audit, statuses
from tests.engines.engines import Engine
from tests.engines.server import Server
from tests.engines.sglang import auditing, inside, trees
from tests.engines.sglang.test_exact import NGRAM, SERVED
from tests.engines.suites.chats import ChatSuite, scripted_model

__all__ = ["scripted_model"]

SETTINGS = {"SPECPLUG_CONFIG": json.dumps({**NGRAM, "faults": {"host_deadline_ms": None}})}


@pytest.fixture(scope="session")
def ours(engine: Callable[..., Engine]) -> Engine:
    """The engine of `test_exact`, overlapped."""
    return engine("SPECPLUG", environment=SETTINGS, **SERVED, name="specplug overlapped")


@pytest.fixture(scope="session")
def control(engine: Callable[..., Engine]) -> Engine:
    """SGLang without speculation, as in `test_exact`."""
    return engine(**SERVED, name="plain overlapped")


def test_overlapped_steps_pass(ours, control):
    report = audit(ours, control)
    assert report.passed, report
    assert report.drafts is not None
    assert report.drafts.accepted > 100
    assert report.drafts.rejected > 20


def test_verification_without_sampling_fails(ours, control):
    """SGLang's verification on a CPU takes the likeliest token at any temperature, as do these engines."""
    assert statuses(audit(ours, control, Sampled(30))) == {"sampled": "failed"}


@pytest.mark.slow  # an engine of its own; the distribution itself is tested in `test_spec_sampling`
def test_verification_with_sampling_passes(engine, control):
    sampling = engine("SPECPLUG", sampling=True, environment=SETTINGS, **SERVED, name="specplug sampling")
    report = audit(sampling, control, Sampled(60))
    assert report.passed, report


@pytest.mark.parametrize("plant", [auditing.swap_rows, auditing.shift_slots])
def test_a_mistake_fails(ours, control, plant):
    ours.inside(plant)
    try:
        report = audit(ours, control, Greedy())
    finally:
        assert ours.inside(trees.restore)
        assert ours.call(inside.flush)
    assert statuses(report) == {"greedy": "failed"}
    assert report.findings[0].examples


@pytest.fixture(scope="session")
def scripted_server(serve: Callable[..., Server], scripted_model: str) -> Server:
    parsers = {"tool_call_parser": "qwen25", "reasoning_parser": "deepseek-r1"}
    return serve("SPECPLUG", environment=SETTINGS, name="scripted", model_path=scripted_model, **parsers)


class TestChats(ChatSuite):
    """SGLang's parsers."""
