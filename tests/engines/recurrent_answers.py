"""Exact probabilities of whole sampled answers of models with recurrent state.

The vocabulary has four tokens, so that all answers can be enumerated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch

from specplug.testing.equality import g_test
from tests.engines.recurrent_models import model

VOCAB = 4
LENGTH = 5
TEMPERATURE = 1.5
PROMPT = [2, 0, 3, 1, 1]
ANSWERS = 512


@functools.cache
def distribution(name: str) -> torch.Tensor:
    """Return the probability of each answer, [VOCAB ** LENGTH] float64; an answer's number has base VOCAB."""
    texts = list(itertools.product(range(VOCAB), repeat=LENGTH))
    with torch.inference_mode():
        logits = model(name, VOCAB)(torch.tensor([[*PROMPT, *text[:-1]] for text in texts])).logits
    after = (logits[:, len(PROMPT) - 1 :].double() / TEMPERATURE).softmax(-1)
    return after.gather(2, torch.tensor(texts)[:, :, None])[:, :, 0].prod(1)


def drafts(name: str) -> list[list[int]]:
    """Return a draft for each of `ANSWERS` requests: the likeliest answer, turned around."""
    likely = int(distribution(name).argmax())
    draft = [likely // VOCAB**place % VOCAB for place in reversed(range(LENGTH))]
    return [draft[number % 3 :] + draft[: number % 3] for number in range(ANSWERS)]


def p_value(name: str, answers: Sequence[Sequence[int]]) -> float:
    """Return the p-value of the counts of answers, by a G-test."""
    places = torch.tensor([VOCAB**place for place in reversed(range(LENGTH))])
    counts = torch.bincount(torch.tensor(answers) @ places, minlength=VOCAB**LENGTH)
    return g_test(counts.numpy(), distribution(name).numpy())
