"""Counts of steps of every draft length, and min_p beside ordinary requests; for other fields see `test_fields`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines import toy
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_sampling import saved, small
from tests.engines.suites.features import EDIT, LOOP, NGRAM

__all__ = ["saved", "small"]

VARIED = {
    "proposer": "ngram",
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": [0, 0, 3, 0, 8]}, "ngram": {"min_n": 1}},
    "faults": {"host_deadline_ms": None},
}
"""Settings with another draft length at each step, and steps without drafts."""
SERVED: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "enable_return_hidden_states": True,
    "chunked_prefill_size": 64,
    "max_running_requests": 24,
}
"""Engines of these tests, and of those of features."""
LOOPING = {"ignore_eos": True}

DRAWN: dict[str, tuple[int, int]] = {}


def count_drafts(scheduler: Any) -> None:
    """Count, by request id, its decoding steps and the tokens that were verified, until `counted`."""
    drafting = scheduler.draft_worker.drafting

    def launched(reqs: Any, draft_length: int, result: Any) -> None:
        for req, verified in zip(reqs, result.cap_lens.tolist(), strict=True):
            steps, tokens = DRAWN.get(req.rid, (0, 0))
            DRAWN[req.rid] = (steps + 1, tokens + verified - 1)
        original(reqs, draft_length, result)

    DRAWN.clear()
    original = trees.put(drafting, "add_launched", launched)


def counted(scheduler: Any) -> dict[str, tuple[int, int]]:
    """Return by request id how many steps it saw and how many draft tokens were verified for it."""
    return dict(DRAWN)


def varied(engine: Callable[..., Engine], **arguments: Any) -> Engine:
    return engine("SPECPLUG", settings=VARIED, **SERVED, name="exact", **arguments)


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True], ids=["sync", "overlap"])
def test_answers_count_the_drafts_that_were_verified(overlap, engine):
    """But not those of the step that overlapped scheduling runs after a request's end."""
    served, params = varied(engine, overlap=overlap), [LOOPING, {}, {"frequency_penalty": 1.5}]
    with served.planted(count_drafts):
        found = served.call(
            inside.generate, prompts=[LOOP, EDIT, LOOP], params=params, rid=["loop", "edit", "penalised"]
        )
        counts = served.inside(counted)
    for name, answer in zip(("loop", "edit", "penalised"), found, strict=True):
        meta, (steps, tokens) = answer["meta"], counts[name]
        assert 0 <= steps - meta["spec_verify_ct"] <= 1
        assert 0 <= tokens - meta["spec_num_proposed_drafts"] <= 8 * (steps - meta["spec_verify_ct"])
        assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
        assert meta["spec_num_proposed_drafts"] > 0 or name == "penalised"
        expected = meta["spec_num_correct_drafts"] / max(meta["spec_num_proposed_drafts"], 1)
        assert meta["spec_accept_rate"] == pytest.approx(expected)


# -- at temperature 1 -----------------------------------------------------------------------------------------------

MIN_P = 0.3


def by_min_p() -> torch.Tensor:
    """Return the toy's distribution [V, V] over tokens at least `MIN_P` times as likely as the likeliest."""
    return toy.cut(lambda ranked: sum(prob >= MIN_P * ranked[0] for prob in ranked))


@pytest.fixture(scope="session")
def toys(small: Callable[..., Engine]) -> Engine:
    return small(
        "SPECPLUG",
        sampling=True,
        overlap=False,
        settings={**NGRAM, "faults": {"host_deadline_ms": None}},
    )


def test_min_p_beside_ordinary_requests(toys):
    """Each request follows its own distribution, in shared steps."""
    distribution = {MIN_P: by_min_p(), 0.0: toy.distribution()}
    shared = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [{**shared, "min_p": min_p} for _ in range(128) for min_p in distribution]
    found = toys.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=params)
    for own, each in distribution.items():
        answers = [answer for given, answer in zip(params, found, strict=True) if given["min_p"] == own]
        assert toy.p_value([answer["token_ids"] for answer in answers], each) > 1e-4
        accepted = sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers)
        assert accepted == 0 if own else accepted > 200
