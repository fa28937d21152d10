"""Pictures in prompts: the answers are the plain model's, and what stands for a picture is never drafted by lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import pictures
from tests.engines.engines import Engine
from tests.engines.vllm import inside
from tests.engines.vllm.referee import fields

PARAMS = {"max_tokens": 40, "ignore_eos": True}
SETTINGS = {"proposer": "ngram", "extra_proposers": ["oracle", "recorder"], "policy": "fixed"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What starts an engine of the model that sees; prompts are prefilled in parts."""
    return {
        "model": pictures.save(tmp_path_factory.mktemp("pictures")),
        "pictures": True,
        "limit_mm_per_prompt": {"image": 2},
        "mm_processor_kwargs": {"backend": "pil"},
        "max_num_batched_tokens": 64,
    }


def ask(llm: Any, params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all of `pictures.PROMPTS` at once."""
    given = [
        {
            "prompt": text,
            **({"multi_modal_data": {"image": [pictures.picture(seed) for seed in seeds]}} if seeds else {}),
        }
        for text, seeds in pictures.PROMPTS
    ]
    outputs = llm.generate(given, [inside.sampling(one) for one in params], use_tqdm=False)
    return [inside.described(output.outputs[0]) for output in outputs]


def drafted(llm: Any, params: list[dict[str, Any]]) -> dict[str, Any]:
    """Do as `ask`; return the answers, all drafts, the spans that proposers saw as no text, and what was accepted."""
    from tests.engines.vllm import test_images, watching

    drafting, drafts, spans = watching.drafting(llm), [], set()
    step, before = drafting.step, watching.snapshot(llm)["total"]["accepted"]

    def noting(batch: Any, outcome: Any, caps: Any) -> Any:
        draft = step(batch, outcome, caps)
        drafts.extend(ids[:n] for ids, n in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True))
        spans.update((barrier.start, barrier.stop) for barrier in batch.barriers)
        return draft

    with watching.stage_takes_steps(llm), pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "step", noting)
        answers = test_images.ask(llm, params)
    accepted = watching.snapshot(llm)["total"]["accepted"] - before
    return {"answers": answers, "drafts": drafts, "spans": sorted(spans), "accepted": accepted}


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_answers_are_the_models_and_pictures_are_not_drafted(kind, engine: Callable[..., Engine], seeing):
    speculating = engine(kind, SETTINGS, name=f"{kind} with pictures", **seeing)
    truth = pictures.answers()
    assert truth[0] != truth[1], "pictures change nothing"

    for proposer, given in pictures.rounds(truth).items():
        own = [fields(**one) for one in given]
        found = speculating.call(drafted, params=[{**PARAMS, **one} for one in own])
        assert [answer["token_ids"] for answer in found["answers"]] == truth, proposer
        assert found["accepted"] > 40, proposer
        assert any(set(ids) & set(pictures.ids()) for ids in found["drafts"]) == (proposer == "oracle"), proposer
        assert {stop - start for start, stop in found["spans"]} == {pictures.PLACES}
    answers = speculating.call(ask, params=[PARAMS] * len(truth))
    assert [answer["token_ids"] for answer in answers] == truth
