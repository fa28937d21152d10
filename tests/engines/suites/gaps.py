"""Prompts with places that are no text: answers are the model's, and lookup drafts nothing from such places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from tests.engines import pictures
from tests.engines.plain import prompts
from tests.engines.suites.served import Served, drafts_of

SETTINGS = {"proposer": "ngram", "extra_proposers": ["oracle", "recorder"], "policy": "fixed"}
PARAMS = {"max_tokens": 40, "ignore_eos": True}


class PicturesSuite:
    """Attributes:
    how: what launches the engine; it reads prompts in pieces.
    model: the argument that names the model's folder.
    span: places of a picture, or of a row of it, that are no text.
    """

    how: ClassVar[dict[str, Any]]
    model: ClassVar[str]
    span: ClassVar[int]

    @pytest.fixture(scope="class")
    def seeing(self, start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
        folder = pictures.save(tmp_path_factory.mktemp("pictures"))
        return start(SETTINGS, name="pictures", **{self.model: folder}, **self.how)

    def drafted(self, served: Served, params: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Answer `pictures.PROMPTS`.

        Returns:
            "answers", token ids; "accepted"; the "ids" that were drafted; the "spans" without text that proposers saw.
        """
        raise NotImplementedError

    def test_answers_are_the_models_and_pictures_are_not_drafted(self, seeing):
        truth = pictures.answers()
        assert truth[0] != truth[1], "pictures change nothing"
        for proposer, given in pictures.rounds(truth).items():
            found = self.drafted(seeing, [{**PARAMS, "specplug": one} for one in given])
            assert found["answers"] == truth, proposer
            assert found["accepted"] > 40, proposer
            assert bool(set(found["ids"]) & set(pictures.ids())) == (proposer == "oracle"), proposer
            assert {stop - start for start, stop in found["spans"]} == {self.span}


class EmbeddingsSuite:
    """Attributes:
    how: what launches the engines.
    given: which of the prompts are given as embeddings.
    """

    how: ClassVar[dict[str, Any]]
    given: ClassVar[Sequence[list[int]]] = [list(prompt) for prompt in prompts()[:4]]

    def drafted(self, served: Served, params: Sequence[dict[str, Any]], plain: bool = False) -> dict[str, Any]:
        """Answer `given`; return "answers" and, if not `plain`, "accepted" and the "spans" that proposers saw."""
        raise NotImplementedError

    def assert_equal(self, truth: list[list[int]], found: list[list[int]]) -> None:
        assert found == truth

    def spans(self) -> list[list[int]]:
        """Return the places that are given as embeddings."""
        return sorted([0, len(prompt)] for prompt in self.given)

    def test_answers_are_stocks_and_gaps_are_known(self, start: Callable[..., Served]):
        plain = [PARAMS] * len(self.given)
        truth = self.drafted(start(None, name="plain, embeddings", **self.how), plain, plain=True)["answers"]
        served = start(SETTINGS, name="embeddings", **self.how)
        for params in ([{**PARAMS, **drafts_of(answer)} for answer in truth], plain):
            found = self.drafted(served, params)
            self.assert_equal(truth, found["answers"])
            assert found["accepted"] > 0
            assert found["spans"] == self.spans()
