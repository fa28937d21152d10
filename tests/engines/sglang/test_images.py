"""Pictures in prompts: the answers are the plain model's, and what stands for a picture is never drafted by lookup."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import pictures
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_spec_greedy import fields

SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "recorder"],
    "policy": "fixed",
    "faults": {"host_deadline_ms": None},
}


@pytest.fixture(scope="module")
def speculating(engine: Callable[..., Engine], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """specplug on the model that sees; prompts are prefilled in parts."""
    return engine(
        "SPECPLUG",
        model_path=pictures.save(tmp_path_factory.mktemp("pictures")),
        disable_fast_image_processor=True,
        chunked_prefill_size=64,
        environment={"SPECPLUG_CONFIG": json.dumps(SETTINGS)},
        name="with pictures",
    )


def ask(engine: Engine, own: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Answer all of `pictures.PROMPTS` at once."""
    images = [[pictures.url(seed) for seed in seeds] or None for _, seeds in pictures.PROMPTS]
    texts = [text for text, _ in pictures.PROMPTS]
    params = [{"max_new_tokens": 40, "ignore_eos": True, **one} for one in own or [{}] * len(texts)]
    return engine.call(inside.generate, prompts=texts, params=params, image_data=images)


def drafted(scheduler: Any) -> dict[str, Any]:
    """Return the ids that were verified, and the spans of running requests that proposers see as no text."""
    ids = {token for step in trees.SEEN for row in step["tokens"] for token in row[1:]}
    return {"ids": sorted(ids), "spans": sorted(SPANS)}


SPANS: set[tuple[int, int]] = set()


def note_spans(scheduler: Any) -> None:
    """Begin to fill `SPANS`."""
    arrivals = scheduler.draft_worker.drafting.arrivals

    def describe(req: Any, text: Any) -> Any:
        described = original(req, text)
        SPANS.update((start, stop) for start, stop in described.barriers)
        return described

    SPANS.clear()
    original = trees.put(arrivals, "_describe", describe)


def test_answers_are_the_models_and_pictures_are_not_drafted(speculating):
    truth = pictures.answers()
    assert truth[0] != truth[1], "pictures change nothing"

    for proposer, given in pictures.rounds(truth).items():
        own = [fields(**one) for one in given]
        for plant in (trees.watch, note_spans):
            speculating.inside(plant)
        try:
            answers = ask(speculating, own)
            seen = speculating.inside(drafted)
        finally:
            speculating.inside(trees.restore)
        assert [answer["token_ids"] for answer in answers] == truth, proposer
        assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers) > 40, proposer
        assert bool(set(seen["ids"]) & set(pictures.ids())) == (proposer == "oracle"), proposer
        assert max(seen["ids"]) < len(pictures.tokenizer()), proposer
        assert {stop - start for start, stop in seen["spans"]} == {pictures.SIDE // pictures.PATCH}, "rows of a picture"
    assert [answer["token_ids"] for answer in ask(speculating)] == truth
