"""What SGLang takes of the suite that all servers run; see `tests.engines.suites.served`.

It does not take `EmbeddingsSuite` with overlap alone: nothing else serves embeddings, so the engines are slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from tests.engines import ends, pictures
from tests.engines.fields import difference
from tests.engines.plain import ids, model
from tests.engines.server import Server
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.launch import FEATURES
from tests.engines.sglang.served import translated
from tests.engines.sglang.test_fields import DRAFTED
from tests.engines.sglang.watching import TIGHT
from tests.engines.suites.chats import ChatSuite, scripted_model
from tests.engines.suites.containment import ContainmentSuite
from tests.engines.suites.environment import EnvironmentSuite
from tests.engines.suites.features import EDIT, LOOP, NGRAM, FeaturesSuite, assert_same
from tests.engines.suites.gaps import EmbeddingsSuite, PicturesSuite
from tests.engines.suites.learning import LearningSuite, learnt_by
from tests.engines.suites.lifecycle import LifecycleSuite
from tests.engines.suites.reasoning import ReasoningSuite
from tests.engines.suites.served import Served
from tests.engines.suites.stream import StreamSuite
from tests.engines.suites.visible import VisibleSuite

__all__ = ["scripted_model"]

SYNC = ("sync",)
BOTH = ("overlap", "sync")
overlapped = pytest.mark.parametrize("kind", ["overlap"], indirect=True, scope="session")


class TestLifecycle(LifecycleSuite):
    """What is of SGLang alone is in `test_lifecycle`."""

    slow, tight = SYNC, TIGHT

    def before_all_come(self, served: Served, count: int) -> None:
        served.engine.inside(watching.gather, count=count)  # what they need of memory then grows in step


class TestVisible(VisibleSuite):
    slow, how, hears_of_one_token, lags = SYNC, {**TIGHT, "name": "tight"}, True, True

    def cases(self) -> list[ends.Case]:
        """Return the cases without a least length, which get no drafts, and SGLang's own."""
        found = [case for case in ends.cases() if not case["least"]]
        for case in [case for case in found if case["name"].startswith("string kept")]:
            string, place = case["strings"][0], case["name"].split()[-1]
            word = re.findall("[a-z]{3,}", ends.decoded(case["answer"]))[2]
            for name, expressions in (("expression", [re.escape(string[:-1]) + "."]), ("plain", ["[a-z]{40}", word])):
                own = {"strings": [], "keep": False, "more": {"stop_regex": expressions}}
                found.append({**case, **own, "name": f"{name} {place}"})
        ending = next(case for case in found if case["ends"])
        return [*found, {**ending, "name": "special", "strings": ["<|end|>"], "hidden": 1}]  # which has no text

    def salted(self, salt: str | None) -> tuple[Any, ...]:
        return (None, salt)


@overlapped
class TestContainment(ContainmentSuite):
    how: ClassVar[dict[str, Any]] = {"topk": 4, "overlap": False}


@overlapped
class TestLearning(LearningSuite):
    def learnt(self, served: Served) -> dict[str, Any]:
        return served.engine.inside(learnt)


def learnt(scheduler: Any) -> dict[str, Any]:
    drafting = scheduler.draft_worker.drafting
    return learnt_by(drafting.step_planner, drafting.stage)


class TestFeatures(FeaturesSuite):
    """On the engines of `test_fields`."""

    slow, room = SYNC, (19, 18)

    @pytest.fixture(scope="class")
    def pair(self, start: Callable[..., Served]) -> tuple[Served, Served]:
        return start(None, name="plain", **FEATURES), start(DRAFTED, name="fields", **FEATURES)

    def test_no_token_at_all(self, pair):
        """Only the prompt is read.  With any speculation SGLang gives the log probability of the next token, too."""
        (expected,), (found,) = (one.generate([EDIT], {"max_tokens": 0, "prompt_logprobs": 0}) for one in pair)
        assert expected["token_ids"] == found["token_ids"] == []
        assert not difference(expected["prompt_logprobs"], found["prompt_logprobs"])
        assert len(expected["prompt_logprobs"]) == len(EDIT)

    def test_answers_are_cached_for_what_follows(self, pair):
        """Accepted drafts are in the cache as if decoded one by one, so a conversation can continue from them."""
        (first,) = pair[1].generate([LOOP], {"ignore_eos": True}, together=True)
        longer = [[*LOOP, *first["token_ids"], *ids("z = 3\n")]]
        expected = pair[0].generate(longer, {"logprobs": 0}, together=True)[0]
        found = pair[1].generate(longer, {"logprobs": 0})[0]
        assert_same(expected, found)
        assert expected["cached"] == 0
        assert found["cached"] > len(LOOP) + 20


@overlapped
class TestStream(StreamSuite):
    def cold(self, start: Callable[..., Served], proposer: str = "ngram", **how: Any) -> Served:
        return super().cold(start, proposer, sampling=True, **how)

    @pytest.mark.slow  # an engine of its own
    def test_serving_trees_compiles_nothing(self, start):
        self.assert_compiles_nothing(self.cold(start, topk=3))


SPANS: set[tuple[int, int]] = set()


def note_spans(scheduler: Any) -> None:
    """Begin to fill `SPANS` with the places without text of the requests that come."""
    allocator = scheduler.draft_worker.drafting.allocator

    def start(occupant: Any) -> None:
        SPANS.update((start, stop) for start, stop in occupant.barriers)
        original(occupant)

    SPANS.clear()
    original = trees.put(allocator, "start", start)


def drafted(scheduler: Any) -> dict[str, Any]:
    """Return the ids that were verified, and the spans without text."""
    ids = {token for step in trees.SEEN for row in step["tokens"] for token in row[1:]}
    trees.restore(scheduler)
    return {"ids": sorted(ids), "spans": sorted(SPANS)}


def watched(served: Served, answer: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the suites of prompts without text ask for."""
    for plant in (trees.watch, note_spans):
        served.engine.inside(plant)
    try:
        found = answer()
    finally:
        seen = served.engine.inside(drafted)
    accepted = sum(one["meta"]["spec_num_correct_drafts"] for one in found)
    return {"answers": [one["token_ids"] for one in found], "accepted": accepted, **seen}


@overlapped
class TestPictures(PicturesSuite):
    model, span = "model_path", pictures.SIDE // pictures.PATCH  # SGLang tells the rows of a picture apart
    how: ClassVar[dict[str, Any]] = {"disable_fast_image_processor": True, "chunked_prefill_size": 64}

    def drafted(self, served: Served, params: Sequence[dict[str, Any]]) -> dict[str, Any]:
        texts = [text for text, _ in pictures.PROMPTS]
        own = [translated(one) for one in params]
        images = [[pictures.url(seed) for seed in seeds] or None for _, seeds in pictures.PROMPTS]
        return watched(
            served, lambda: served.engine.call(inside.generate, prompts=texts, params=own, image_data=images)
        )


@overlapped
class TestEmbeddings(EmbeddingsSuite):
    slow = BOTH  # engines of their own: nothing else serves embeddings
    how: ClassVar[dict[str, Any]] = {"disable_radix_cache": True, "dtype": "bfloat16"}  # as SGLang wants them

    def drafted(self, served: Served, params: Sequence[dict[str, Any]], plain: bool = False) -> dict[str, Any]:
        own = [translated(one) for one in params]

        def answer() -> list[dict[str, Any]]:
            return served.engine.call(embedded, prompts=self.given, params=own)

        return {"answers": [one["token_ids"] for one in answer()]} if plain else watched(served, answer)

    def assert_equal(self, truth: list[list[int]], found: list[list[int]]) -> None:
        from specplug.testing.equality import judge_greedy
        from tests.engines.plain import forward

        judge_greedy(forward, self.given, truth, found, tolerance=0.2, allowed_near_ties=1).assert_ok()


def embedded(engine: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all prompts at once, given as embeddings."""
    import asyncio

    import torch
    from sglang.srt.managers.io_struct import GenerateReqInput

    table = model().get_input_embeddings()

    async def answer(prompt: list[int], own: dict[str, Any]) -> dict[str, Any]:
        given = GenerateReqInput(input_embeds=table(torch.tensor(prompt)).tolist(), sampling_params=own)
        return inside.described(await anext(engine.tokenizer_manager.generate_request(given, None)))

    async def answers() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(answer, prompts, params))

    return engine.loop.run_until_complete(answers())


@overlapped
class TestReasoning(ReasoningSuite):
    model = "model_path"
    how: ClassVar[dict[str, Any]] = {
        "reasoning_parser": "deepseek-r1",
        "grammar_backend": "xgrammar",
        "constrained_json_disable_any_whitespace": True,
    }

    def assert_same(self, expected: dict[str, Any], found: dict[str, Any]) -> None:
        """The usage is the same, too, and the reasoning is a part of the answer."""
        super().assert_same(expected, found)
        for name in ("completion_tokens", "reasoning_tokens"):
            assert found["meta"][name] == expected["meta"][name], name
        assert 0 < found["meta"]["reasoning_tokens"] <= found["meta"]["completion_tokens"]
        assert found["meta"]["spec_num_correct_drafts"] > 0


@pytest.fixture(scope="session")
def scripted_server(serve: Callable[..., Server], scripted_model: str) -> Server:
    parsers = {"tool_call_parser": "qwen25", "reasoning_parser": "deepseek-r1"}
    return serve("SPECPLUG", settings=NGRAM, name="scripted", model_path=scripted_model, **parsers)


class TestChats(ChatSuite):
    """SGLang's parsers."""


class TestEnvironment(EnvironmentSuite):
    files = ("sglang.txt", "sglang-nodeps.txt")
