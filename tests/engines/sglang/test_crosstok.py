"""Drafts of a model with another tokenizer: greedy output is the plain model's, and samples have its distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import crosstok
from tests.engines.plain import MAX_TOKENS, assert_greedy, greedy, prompts
from tests.engines.sglang import inside, watching
from tests.engines.sglang.engines import Engine

PROMPTS = [list(prompt) for prompt in prompts()[:12]]
FORMS = {"crosstok": crosstok.settings(), "crosstok-device": crosstok.on_device()}


@pytest.fixture(scope="session", params=["crosstok-device", pytest.param("crosstok", marks=pytest.mark.slow)])
def form(request: pytest.FixtureRequest) -> str:
    """The proposer: on the host, or on the engine's device."""
    return str(request.param)


@pytest.fixture(scope="session")
def paired(form: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose draft model has another tokenizer, overlapped."""
    return engine("SPECPLUG", draft_length=4, sampling=True, settings=FORMS[form], name=form)


def test_greedy(form: str, paired: Engine) -> None:
    answers = paired.call(inside.generate, prompts=PROMPTS, params={"max_new_tokens": MAX_TOKENS})
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    found = paired.inside(watching.counts)
    assert not found["faults"]
    assert found["by_source"][f"{form}/text"]["acceptance_rate"] > 0.5
    assert found["total"]["tau"] > 1.3


@pytest.mark.slow  # an engine of its own; the embedded engine has the form on the host
def test_texts_beyond_the_drafts_last_position(engine: Callable[..., Engine], tmp_path: Path) -> None:
    """The form on the device goes on drafting, whether the prompt or the answer crosses it."""
    settings = crosstok.on_device(model=str(crosstok.of_few_positions(tmp_path)))
    limited = engine("SPECPLUG", draft_length=4, settings=settings, name="few positions")
    texts = [(PROMPTS[0] * 10)[-length:] for length in (250, 700)]
    answers = limited.call(inside.generate, prompts=texts, params={"max_new_tokens": 100, "ignore_eos": True})
    for answer in answers:
        assert answer["meta"]["spec_num_correct_drafts"] > 30


def test_sampled(paired: Engine) -> None:
    texts, params = crosstok.requests(256)
    limits = {"max_new_tokens": crosstok.LENGTH + 1, "ignore_eos": True}
    before = paired.inside(watching.counts)["total"]
    answers = paired.call(inside.generate, prompts=texts, params=[{**own, **limits} for own in params])
    after = paired.inside(watching.counts)
    assert not after["faults"]
    assert all(after["total"][count] - before[count] > 30 for count in ("accepted", "rejected"))
    assert crosstok.p_value([answer["token_ids"] for answer in answers]) > 1e-4


@pytest.fixture(scope="session")
def hybrid(engine: Callable[..., Engine]) -> Engine:
    """An engine with lookup and the same draft model under one decision."""
    return engine("SPECPLUG", draft_length=4, settings={**crosstok.settings(), "proposer": "hybrid"}, name="hybrid")


@pytest.mark.slow
def test_greedy_with_lookup(hybrid: Engine) -> None:
    answers = hybrid.call(inside.generate, prompts=PROMPTS, params={"max_new_tokens": MAX_TOKENS})
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    found = hybrid.inside(watching.counts)
    assert not found["faults"]
    accepted = {name: counts["accepted"] for name, counts in found["by_source"].items()}
    assert all(any(accepted[name] for name in accepted if part in name) for part in ("hybrid/ngram", "hybrid/crosstok"))
    assert found["total"]["tau"] > 1.3
