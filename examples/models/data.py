"""Training batches: tasks in the shipped format, and puzzles that teach copying first.

One example is one row.  Rows of similar length share a batch and are padded on the right; under a
causal mask the padding changes nothing to its left, so no attention mask is needed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specplug.tools.demo.tasks import ANSWER, DOCUMENT, EDIT, MARKERS, Kind, make_tasks

POOL = 2048
"""Examples drawn at once; batches are cut from a pool sorted by length."""

PROMPT_WEIGHT, CODE_WEIGHT, DEPARTURE_WEIGHT = 0.12, 0.25, 3.0
"""Weights in the loss of every fourth token of prompts (the others are not counted, to save time), of
plain code, and of departures; the rest of an answer weighs 1."""


@dataclass(frozen=True)
class Stage:
    """Training data up to a fraction of the run.

    Attributes:
        until: the fraction of the run at which the next stage begins.
        max_chars: limit on the tasks' material, in characters.
        long: share of the tasks with twice that limit (plain code: always).
        puzzles: share of examples that are random tokens to copy.
        scrambled: share of the tasks whose words are replaced by random other words.

    """

    until: float
    max_chars: int
    long: float
    puzzles: float
    scrambled: float


CURRICULUM = (
    Stage(0.06, 250, long=0.0, puzzles=0.8, scrambled=0.6),
    Stage(0.20, 250, long=0.0, puzzles=0.5, scrambled=0.5),
    Stage(0.40, 350, long=0.0, puzzles=0.2, scrambled=0.3),
    Stage(0.70, 450, long=0.0, puzzles=0.1, scrambled=0.15),
    Stage(1.00, 600, long=0.1, puzzles=0.01, scrambled=0.05),
)
TASK_SHARES: dict[Kind, float] = {"edit": 0.64, "quote": 0.08, "json": 0.2, "code": 0.08}


@dataclass(frozen=True)
class Example:
    """Token ids and the weight of each one's prediction in the loss."""

    ids: list[int]
    weights: list[float]


def weigh(prompt: list[int], answer: list[int]) -> Example:
    """Join prompt and answer; tokens at which the answer departs from the copied text weigh most.

    A token departs if it follows its predecessor nowhere in the prompt: the beginning of a new
    name, the return to the old text after it, the end.  Such tokens are few and decide whether
    an answer is right.
    """
    known = set(pairwise(prompt))
    steps = pairwise([prompt[-1], *answer])
    weights = [1.0 if step in known else DEPARTURE_WEIGHT for step in steps]
    before = [0.0 if place % 4 else PROMPT_WEIGHT for place in range(len(prompt))]
    return Example(prompt + answer, before + weights)


@dataclass(frozen=True)
class Batch:
    """`input_ids` and the `weights` of predicting them, both [rows, length]; padding weighs 0."""

    input_ids: Tensor
    weights: Tensor

    @property
    def num_tokens(self) -> int:
        """Positions computed, padding included."""
        return self.input_ids.numel()


class ExampleStream:
    """Draws examples of the current stage; `progress` in [0, 1] chooses the stage."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.rng = random.Random(seed)
        self.puzzles = (self._copy_puzzle, self._edit_puzzle, self._edit_puzzle)
        self.task_seed = seed * 1_000_000
        vocabulary = tokenizer.get_vocab()
        self.answer_id = vocabulary[ANSWER]
        self.plain_ids = sorted(set(vocabulary.values()) - {vocabulary[m] for m in MARKERS})
        texts = {i: tokenizer.decode([i]) for i in self.plain_ids}
        self.document_id, self.edit_id = vocabulary[DOCUMENT], vocabulary[EDIT]
        self.word_ids = [i for i, t in texts.items() if t.strip().isalpha()]

    def batches(self, progress: float, batch_tokens: int) -> Iterator[Batch]:
        """Yield the batches of one pool, in random order, each of about `batch_tokens` tokens."""
        pool = sorted(self._pool(progress), key=lambda example: len(example.ids))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if (len(groups[-1]) + 1) * len(example.ids) > batch_tokens:
                groups.append([])
            groups[-1].append(example)
        groups = [group for group in groups if group]
        self.rng.shuffle(groups)
        for group in groups:
            yield self._batch(group)

    def _pool(self, progress: float) -> list[Example]:
        stage = next(s for s in CURRICULUM if progress < s.until or s.until >= 1)
        puzzles = int(POOL * stage.puzzles)
        pool = [self.rng.choice(self.puzzles)(stage.max_chars) for _ in range(puzzles)]
        for kind, share in TASK_SHARES.items():
            count = int((POOL - puzzles) * share)
            if kind == "code":
                pool += self._tasks(kind, count, 2 * stage.max_chars, 0.0)
                continue
            long = int(count * stage.long)
            pool += self._tasks(kind, count - long, stage.max_chars, stage.scrambled)
            pool += self._tasks(kind, long, 2 * stage.max_chars, stage.scrambled)
        return pool

    def _tasks(self, kind: Kind, count: int, max_chars: int, scrambled: float) -> list[Example]:
        if not count:
            return []
        self.task_seed += 1
        tasks = make_tasks(kind, "train", count, self.task_seed, max_chars=max_chars)
        if kind == "code":
            texts = self.tokenizer([task.prompt + task.answer for task in tasks]).input_ids
            texts = [ids[: self.max_length] for ids in texts]
            return [Example(ids, [CODE_WEIGHT] * len(ids)) for ids in texts]
        prompts = self.tokenizer([task.prompt for task in tasks]).input_ids
        answers = self.tokenizer([task.answer for task in tasks]).input_ids
        examples = []
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = [*prompt, *answer, self.tokenizer.eos_token_id]
            if self.rng.random() < scrambled:
                ids = self._scramble(ids)
            if len(ids) <= self.max_length:
                examples.append(weigh(ids[: len(prompt)], ids[len(prompt) :]))
        return examples

    def _scramble(self, ids: list[int]) -> list[int]:
        """Replace the words of an example, each word always by the same random other word."""
        used = set(ids).intersection(self.word_ids)
        exchange = dict(zip(sorted(used), self.rng.sample(self.word_ids, len(used)), strict=True))
        return [exchange.get(i, i) for i in ids]

    def _copy_puzzle(self, max_length: int) -> Example:
        """Return random tokens and their repetition; the small alphabet makes a single token ambiguous."""
        length = self.rng.randint(8, max(16, max_length // 3))
        alphabet = self.rng.sample(self.plain_ids, self.rng.choice((8, 16, 32, 128, 512)))
        copied = self.rng.choices(alphabet, k=length)
        return weigh([*copied, self.answer_id], [*copied, self.tokenizer.eos_token_id])

    def _edit_puzzle(self, max_length: int) -> Example:
        """Return a snippet to apply, in random tokens: a few tokens are replaced, their neighbours are not."""
        rng = self.rng
        alphabet = rng.sample(self.plain_ids, rng.choice((32, 128, 512)))
        before, old, new, after = (
            rng.choices(alphabet, k=rng.randint(low, high))
            for low, high in ((6, max(8, max_length // 8)), (1, 8), (1, 8), (6, max(8, max_length // 8)))
        )
        snippet = [*before[-rng.randint(3, 6) :], *new, *after[: rng.randint(3, 6)]]
        prompt = [self.document_id, *before, *old, *after, self.edit_id, *snippet, self.answer_id]
        return weigh(prompt, [*before, *new, *after, self.tokenizer.eos_token_id])

    def _batch(self, group: list[Example]) -> Batch:
        width = max(len(example.ids) for example in group)
        ids = torch.full((len(group), width), self.tokenizer.eos_token_id, dtype=torch.long)
        weights = torch.zeros(len(group), width)
        for row, example in enumerate(group):
            ids[row, : len(example.ids)] = torch.tensor(example.ids)
            weights[row, : len(example.ids)] = torch.tensor(example.weights)
        return Batch(ids, weights)
