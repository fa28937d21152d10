"""Counts of a prediction's tokens in what SGLang's endpoints answer.  Needs no SGLang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from specplug.requests.predicted import Predicted
from specplug_sglang.frontend import intake
from tests.requests.test_predicted import PREDICTION, predicted

COUNTS = {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 13}


class Usage(BaseModel):
    completion_tokens: int = 8
    completion_tokens_details: dict[str, int] | None = None


class Completion(BaseModel):
    text: str = "x"
    usage: Usage = Usage()


async def collected(answers: list[Any], of_request: Predicted, *, pieces: bool) -> list[Any]:
    async def given():
        for answer in answers:
            yield answer

    return [answer async for answer in intake.counted(given(), of_request, pieces=pieces)]


@pytest.mark.parametrize("pieces", [False, True])
def test_answers_in_pieces_and_whole_ones_count_the_same(pieces):
    of_request, meta = predicted(PREDICTION), {"id": "r"}
    parts = [PREDICTION[:3], PREDICTION[3:7]] if pieces else [PREDICTION[:3], PREDICTION[:7]]
    answers = [{"output_ids": part, "meta_info": meta} for part in parts]
    assert asyncio.run(collected(answers, of_request, pieces=pieces)) == answers
    assert of_request.details() == COUNTS


def counting() -> Predicted:
    of_request = predicted(PREDICTION)
    of_request.extend(0, PREDICTION[:7])
    return of_request


def test_a_whole_answer_keeps_the_engines_own_details():
    answer = Completion(usage=Usage(completion_tokens_details={"reasoning_tokens": 2}))
    found = intake.detailed(answer, counting())
    assert found == {
        "text": "x",
        "usage": {"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 2, **COUNTS}},
    }
    assert intake.detailed(answer, Predicted()) is answer, "no prediction"
