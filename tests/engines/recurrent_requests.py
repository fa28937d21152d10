"""Prompts for models with recurrent layers, and the models' own answers to them, without an engine."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from tests.engines.continuations import continuations
from tests.engines.recurrent_models import VOCAB, model

TOKENS = 20
"""The longest answer."""

SHARED = 70
"""The length of a beginning that some prompts share."""

Prompt = tuple[int, ...]


@functools.cache
def prompts(count: int, draft_length: int, vocab: int = VOCAB) -> list[Prompt]:
    """Return prompts of one token, of `draft_length` + 1, of a few and of many, and some with a shared beginning."""
    draw = random.Random(7)

    def some(length: int) -> Prompt:
        return tuple(draw.randrange(vocab) for _ in range(length))

    shared = some(SHARED)
    made = [
        lambda: some(1),
        lambda: some(draft_length + 1),
        lambda: some(draw.randrange(2, 12)),
        lambda: some(draw.randrange(30, 60)),
        lambda: shared + some(3),
        lambda: some(draw.randrange(12, 30)),
    ]
    return [made[number % len(made)]() for number in range(count)]


@functools.cache
def drawn(*lengths: int, vocab: int = VOCAB) -> list[Prompt]:
    """Return prompts of these lengths."""
    draw = random.Random(11)
    return [tuple(draw.randrange(vocab) for _ in range(length)) for length in lengths]


def tokens_of(number: int) -> int:
    """Return the length of an answer: requests come and go while others of the batch go on."""
    return TOKENS - number * 5 % 9


@functools.cache
def _answer(name: str, prompt: Prompt) -> list[int]:
    [answer] = continuations(model(name), [list(prompt)], TOKENS)
    return answer


def answers(name: str, given: Sequence[Prompt]) -> list[list[int]]:
    """Return the model's own answers, each as long as `tokens_of` says."""
    return [_answer(name, prompt)[: tokens_of(number)] for number, prompt in enumerate(given)]


def wrong_tokens(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> int:
    """Return how many tokens differ."""
    assert [len(answer) for answer in found] == [len(answer) for answer in expected]
    pairs = zip(found, expected, strict=True)
    return sum(a != b for one, other in pairs for a, b in zip(one, other, strict=True))
