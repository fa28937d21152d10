"""Models whose layers keep a state per request, with random weights, against the model without an engine.

Each step's state is taken back to the last accepted token, whatever draft length the step had; drafts are the right
text with a wrong token now and then.  Requests of many lengths wait for each other, so that rows come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import pytest

from tests.engines import recurrent_answers
from tests.engines.continuations import nearly
from tests.engines.recurrent_models import VOCAB, save
from tests.engines.recurrent_requests import Prompt, answers, prompts, tokens_of, wrong_tokens
from tests.engines.suites.served import Params, Served

DRAFT_LENGTH = 4
VARYING = {
    "proposer": "ngram",
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": (4, 0, 3, 0, 4, 1)}},
}
"""Each step has another draft length than the one before, and steps without drafts follow accepted drafts."""
CAPS = [DRAFT_LENGTH, 2, 1, 0, 3]
GIVEN = prompts(12, DRAFT_LENGTH)


class RecurrentSuite:
    """Attributes:
    how: what launches an engine for a few requests at a time, with prompts in pieces; `model` names the folder.
    caching: further arguments, to keep states of prompts; without them none are kept.
    sampling: further arguments, for sampling by 64 requests at a time.
    params: of every request.
    models: as `recurrent_models` names them.
    fast: kinds and models that `make test` runs; of single tests by their names, of the others by "".
    """

    how: ClassVar[dict[str, Any]]
    model: ClassVar[str]
    caching: ClassVar[dict[str, Any]]
    sampling: ClassVar[dict[str, Any]]
    params: ClassVar[Params] = {}
    models: ClassVar[Sequence[str]]
    fast: ClassVar[dict[str, Collection[tuple[str, str]]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.models, scope="session")

    @pytest.fixture(scope="class")
    def launch(self, start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Served]:
        """Launch an engine of a model, with further arguments."""

        def launched(name: str, vocab: int = VOCAB, **sizes: Any) -> Served:
            folder = tmp_path_factory.getbasetemp() / f"{name} of {vocab} tokens"
            if not folder.exists():
                folder.mkdir()
                save(name, folder, vocab)
            return start(VARYING, name=name, **{self.model: str(folder), **self.how, **sizes})

        return launched

    def served(self, served: Served, name: str, given: Sequence[Prompt], caps: Sequence[int | None] = (None,)) -> Any:
        """Answer, with drafts that are nearly right, capped in turn; return what `Served.counted` does."""
        params = []
        for number, (prompt, answer) in enumerate(zip(given, answers(name, given), strict=True)):
            fields: Params = {"references": [{"token_ids": nearly(list(prompt), answer, 6)}], "store": False}
            cap = caps[number % len(caps)]
            fields |= {} if cap is None else {"num_speculative_tokens": cap}
            params.append({"max_tokens": tokens_of(number), "ignore_eos": True, **self.params, "specplug": fields})
        return served.counted(given, params)

    def wrong(self, served: Served, name: str, given: Sequence[Prompt], caps: Sequence[int | None] = (None,)) -> int:
        """Return how many tokens of the answers are not the model's own."""
        found = self.served(served, name, given, caps)["answers"]
        return wrong_tokens([answer["token_ids"] for answer in found], answers(name, given))

    def assert_right(
        self, served: Served, name: str, given: Sequence[Prompt] = GIVEN, caps: Sequence[int | None] = (None,)
    ) -> list[Any]:
        """Assert that the engine answers as the model does, and that drafts were accepted and rejected."""
        found = self.served(served, name, given, caps)
        assert wrong_tokens([answer["token_ids"] for answer in found["answers"]], answers(name, given)) == 0
        assert not found["faults"]
        assert found["total"]["accepted"] > 2 * len(given)
        assert found["total"]["rejected"] > 2
        return list(found["answers"])

    def test_draft_lengths_that_change_at_every_step(self, launch, name):
        self.assert_right(launch(name), name)

    def test_requests_that_cap_their_drafts(self, launch, name):
        self.assert_right(launch(name), name, GIVEN, CAPS)

    def test_prompts_whose_beginnings_are_cached(self, launch, name):
        """Chats that go on: the state after a prompt and its answer is kept."""
        served = launch(name, **self.caching)
        given = GIVEN[4::2]
        self.assert_right(served, name, given)
        longer = [(*prompt, *answer, 7, 3) for prompt, answer in zip(given, answers(name, given), strict=True)]
        assert sum(answer["cached"] for answer in self.assert_right(served, name, longer)) > 0

    def test_sampled_answers_have_the_models_distribution(self, launch, name):
        """Exact probabilities of whole answers over a vocabulary of four tokens, against observed counts."""
        served = launch(name, recurrent_answers.VOCAB, **self.sampling)
        common = {"temperature": recurrent_answers.TEMPERATURE, "max_tokens": recurrent_answers.LENGTH}
        prompt = recurrent_answers.PROMPT
        params = [
            {
                **common,
                "ignore_eos": True,
                **self.params,
                "specplug": {"references": [{"token_ids": [*prompt, *draft]}], "store": False},
            }
            for draft in recurrent_answers.drafts(name)
        ]
        found = served.counted([prompt] * len(params), params)
        assert recurrent_answers.p_value(name, [one["token_ids"] for one in found["answers"]]) > 1e-4
        assert 100 < found["total"]["accepted"] < found["total"]["verified"] - 100
