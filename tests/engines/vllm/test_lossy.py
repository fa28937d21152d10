"""The lossy verifier that a server's settings name: for requests that name it, as lenient as each asks, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.vllm.test_verifier import PROMPTS, baseline, spoiled, verified, verified_with
from tests.engines.vllm.watching import drafter

__all__ = ["baseline", "verified"]


@pytest.fixture(params=["v1", pytest.param("v2", marks=pytest.mark.slow)])
def kind(request):
    return request.param


def serve_as_configured(llm: Any) -> None:
    """Put the verifier back that the server's settings name."""
    server = drafter(llm).verifier
    server.plugin, server.lossless = server.configured, False


def lossy_counts(llm: Any) -> tuple[int, float]:
    """Return how many draft tokens lossy verification has accepted, and how many of them departed."""
    found = drafter(llm).drafting.stage.metrics.snapshot().lossy
    return found.accepted, found.departed


def test_each_request_has_its_own_threshold(baseline, verified):
    plain = baseline.call("inside.generate", prompts=PROMPTS[:1] * 3)
    verified.call(serve_as_configured)
    before = verified.call(lossy_counts)
    wrong = spoiled(plain[0]["token_ids"], 5)
    fields: list[dict[str, Any]] = [{}, {"acceptance_threshold": 1}, {"acceptance_threshold": "any"}]
    params = [verified_with(wrong, **given, **({"verifier": "threshold"} if given else {})) for given in fields]
    lossless, strict, lenient = verified.call("inside.generate", prompts=PROMPTS[:1] * 3, params=params)
    assert lossless == strict == plain[0]
    assert lenient["token_ids"][4] == wrong[4]
    accepted, departed = (after - early for after, early in zip(verified.call(lossy_counts), before, strict=True))
    assert 1 <= departed < accepted
