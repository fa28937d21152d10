"""What vLLM takes of the suite that all servers run; see `tests.engines.suites.served`.

V2 runs in Triton's interpreter here and takes its time: with async scheduling off, and where V1 has the same code,
`make test` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

from tests.engines import pictures
from tests.engines.plain import model
from tests.engines.server import Server
from tests.engines.suites.chats import ChatSuite, scripted_model
from tests.engines.suites.containment import ContainmentSuite
from tests.engines.suites.environment import EnvironmentSuite
from tests.engines.suites.features import FeaturesSuite
from tests.engines.suites.gaps import EmbeddingsSuite, PicturesSuite
from tests.engines.suites.learning import LearningSuite, learnt_by
from tests.engines.suites.lifecycle import LifecycleSuite
from tests.engines.suites.served import Served
from tests.engines.suites.stream import StreamSuite
from tests.engines.suites.visible import VisibleSuite
from tests.engines.vllm import inside, watching
from tests.engines.vllm.conftest import NGRAM
from tests.engines.vllm.fields import CHUNK, ENGINE, LENGTH
from tests.engines.vllm.launch import ZOO
from tests.engines.vllm.served import answers
from tests.engines.vllm.test_fields import DRAFTED

__all__ = ["scripted_model"]

V2 = ("v2",)
BOTH_OF_V2 = ("v2", "v2_async")
on_v1 = pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")
on_v1_and_async = pytest.mark.parametrize("kind", ["v1", "v2_async"], indirect=True, scope="session")
on_async = pytest.mark.parametrize("kind", ["v2_async"], indirect=True, scope="session")


class TestLifecycle(LifecycleSuite):
    """What is of vLLM alone is in `test_lifecycle`."""

    slow = V2
    long = 110
    tight: ClassVar[dict[str, Any]] = {
        "max_num_batched_tokens": CHUNK,
        "max_model_len": 512,
        "block_size": 32,
        "num_gpu_blocks_override": 21,
        "enable_prefix_caching": False,
    }


class TestVisible(VisibleSuite):
    slow = V2
    hears_of_one_token = False

    @pytest.fixture(scope="class")
    def served(self, start: Callable[..., Served]) -> Served:
        return start(ZOO, name="zoo")

    def salted(self, salt: str | None) -> tuple[Any, ...]:
        return (salt,)


class TestContainment(ContainmentSuite):
    slow = V2


@on_v1_and_async
class TestLearning(LearningSuite):
    slow = BOTH_OF_V2

    def learnt(self, served: Served) -> dict[str, Any]:
        return served.engine.call(learnt)


def learnt(llm: Any) -> dict[str, Any]:
    return learnt_by(inside.scheduler(llm).step_planner, watching.drafting(llm).stage)


class TestFeatures(FeaturesSuite):
    """Without the fields of requests, which `test_fields` has."""

    slow = V2

    @pytest.fixture(scope="class")
    def pair(self, start: Callable[..., Served]) -> tuple[Served, Served]:
        """The engines of `test_fields`."""
        return start(None, name="plain", **ENGINE), start(DRAFTED, name="fields", draft_length=LENGTH, **ENGINE)


@on_async
class TestStream(StreamSuite):
    def test_serving_between_kernels_compiles_nothing(self, start):
        """So does a proposer on the device."""
        self.assert_compiles_nothing(self.cold(start, "bigram"))


@on_v1
class TestCompiledSteps(StreamSuite):
    """V1's are compiled code."""


@on_v1_and_async
class TestPictures(PicturesSuite):
    slow = BOTH_OF_V2
    model = "model"
    span = pictures.PLACES
    how: ClassVar[dict[str, Any]] = {
        "limit_mm_per_prompt": {"image": 2},
        "mm_processor_kwargs": {"backend": "pil"},
        "max_num_batched_tokens": CHUNK,
    }

    def drafted(self, served: Served, params: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return served.engine.call(seen, params=params)


def seen(llm: Any, params: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer the prompts with pictures; return what the suite asks for."""
    from specplug_testkit.recorder import RECORDS

    given = [
        {"prompt": text, **({"multi_modal_data": {"image": [*map(pictures.picture, seeds)]}} if seeds else {})}
        for text, seeds in pictures.PROMPTS
    ]
    drafting = watching.drafting(llm)
    drafts = set[int]()
    of_stage = drafting.take

    def noting(*of_step: Any) -> Any:
        draft = of_stage(*of_step)
        drafts.update(
            token for ids, n in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True) for token in ids[:n]
        )
        return draft

    with watching.stage_takes_steps(llm), pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "take", noting)
        return {**_recorded(llm, RECORDS, lambda: answers(llm, given, params)), "ids": sorted(drafts)}


def _recorded(llm: Any, records: list[Any], answer: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return "answers", "accepted" drafts, and the "spans" without text that the proposer `recorder` saw."""
    records.clear()
    before = watching.counts(llm)["total"]["accepted"]
    found = [one["token_ids"] for one in answer()]
    spans = {(barrier["start"], barrier["stop"]) for record in records for barrier in record.get("barriers", ())}
    accepted = watching.counts(llm)["total"]["accepted"] - before
    return {"answers": found, "accepted": accepted, "spans": sorted(spans)}


@on_v1_and_async
class TestEmbeddings(EmbeddingsSuite):
    """Every second prompt is given as embeddings, the others as token ids."""

    slow = BOTH_OF_V2
    how: ClassVar[dict[str, Any]] = {"enable_prompt_embeds": True}

    def drafted(self, served: Served, params: Sequence[dict[str, Any]], plain: bool = False) -> dict[str, Any]:
        return served.engine.call(embedded, prompts=self.given, params=params, plain=plain)

    def spans(self) -> list[list[int]]:
        return sorted([0, len(prompt)] for prompt in self.given[::2])


def embedded(llm: Any, prompts: list[list[int]], params: list[dict[str, Any]], plain: bool) -> dict[str, Any]:
    table = model().get_input_embeddings()
    given: list[Any] = [
        {"prompt_embeds": table(torch.tensor(prompt)).detach()} if place % 2 == 0 else inside.prompt_of(prompt)
        for place, prompt in enumerate(prompts)
    ]
    if plain:
        return {"answers": [one["token_ids"] for one in answers(llm, given, params)]}
    from specplug_testkit.recorder import RECORDS

    return _recorded(llm, RECORDS, lambda: answers(llm, given, params))


@pytest.fixture(scope="session")
def scripted_server(serve: Callable[..., Server], scripted_model: str) -> Server:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    return serve("v1", NGRAM, name="scripted", endpoints=True, in_process=True, model=scripted_model, **parsers)


class TestChats(ChatSuite):
    """vLLM's parsers."""


class TestEnvironment(EnvironmentSuite):
    files = ("vllm.txt", "vllm-nodeps.txt")
