"""Drafts of a batch are each text's own greedy continuation, whatever the others' lengths and however it has grown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from specplug.draft_model.drafting import SHORT, Drafter
from specplug.draft_model.model import DraftModel
from specplug.draft_model.texts import Text
from tests.draft_model.tools import CONTEXT, CPU, VOCAB, greedy, save

TOKENS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save("llama", tmp_path_factory.mktemp("model"))


class Rig:
    """A drafter, and the texts of its rows.

    Attributes:
        drafts: the newest draft of each row.
    """

    def __init__(
        self,
        path: str,
        rows: int,
        max_length: int = CONTEXT,
        num_first: int = 0,
        *,
        chunk: int = 512,
        seconds: float | None = None,
    ) -> None:
        self.model, self.num_first = DraftModel(path, max_texts=rows, max_length=max_length, device=CPU), num_first
        self.drafter = Drafter(self.model, chunk=chunk, seconds=seconds)
        self.texts = [Text(self.model.max_length, num_first) for _ in range(rows)]
        self.ids: list[list[int]] = [[] for _ in range(rows)]
        self.random = np.random.default_rng(5)
        self.drafts: dict[int, list[int]] = {}

    def append(self, row: int, ids: list[int]) -> None:
        self.texts[row].change(len(self.ids[row]), ids)
        self.ids[row] += ids

    def new(self, count: int) -> list[int]:
        found: list[int] = self.random.integers(VOCAB, size=count).tolist()
        return found

    def draft(self, *rows: int, num_tokens: int = TOKENS) -> list[int]:
        """Draft for rows and compare; return those that were ready."""
        ready, ids = self.drafter.draft({row: self.texts[row] for row in rows}, num_tokens, most_likely)
        for row in ready:
            self.drafts[row] = ids[row].tolist()
            assert self.drafts[row] == greedy(self.model.path, self.window(row), ids.shape[1]), row
            self.texts[row].cache(self.drafts[row][:-1])
        return ready

    def window(self, row: int) -> list[int]:
        """Return the ids that a text drafts after: its first ones, and its newest."""
        first = self.ids[row][: self.num_first]
        return first + self.ids[row][len(self.ids[row]) - len(self.texts[row]) + len(first) :]


def most_likely(step: int, logits: Tensor) -> Tensor:
    return logits.argmax(-1)


@pytest.mark.parametrize("chunk", [512, 8])
def test_texts_of_different_lengths_over_many_steps(path: str, chunk: int) -> None:
    """Between two steps a text accepts some of its draft, then goes on otherwise; some skip a step."""
    rig = Rig(path, 5, chunk=chunk)
    for row, length in enumerate((60, 1, 17, 3, 90)):
        rig.append(row, rig.new(length))
    seen = [0] * 5
    for number in range(24):
        rows = [row for row in range(5) if (row + number) % 4]
        for row in rig.draft(*rows):
            seen[row] += 1
            kept = int(rig.random.integers(TOKENS + 1))
            rig.append(row, [*rig.drafts[row][:kept], *rig.new(1)])
    assert min(seen) > 2


def test_long_texts_come_in_chunks_while_short_ones_draft(path: str) -> None:
    rig = Rig(path, 3, chunk=20)
    for row, length in enumerate((70, 5, 30)):
        rig.append(row, rig.new(length))
    ready = [rig.draft(0, 1, 2) for _ in range(5)]
    assert ready[0] == [1, 2], "the shortest of the long ones is the first to be caught up with"
    assert [0 in rows for rows in ready] == sorted(0 in rows for rows in ready)
    assert ready[-1] == [0, 1, 2]


def test_rows_that_are_not_ready_keep_what_is_computed(path: str) -> None:
    rig = Rig(path, 2, chunk=16)
    rig.append(1, rig.new(16 * 2 + SHORT))
    assert [rig.draft(1) for _ in range(3)] == [[], [1], [1]]
    assert [rig.texts[0].num_cached, rig.texts[1].num_cached] == [0, 16 * 2 + SHORT + TOKENS - 1]


def test_a_step_computes_no_more_than_its_chunk_for_long_texts(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    forward = DraftModel.forward

    def counted(self: DraftModel, ids: Tensor, *args: object, **options: object) -> Tensor:
        sizes.append(ids.shape[1])
        return forward(self, ids, *args, **options)  # type: ignore[arg-type]

    rig = Rig(path, 4, chunk=24)
    for row in range(4):
        rig.append(row, rig.new(60))
    monkeypatch.setattr(DraftModel, "forward", counted)
    while len(rig.draft(*range(4))) < 4:
        assert sum(num_columns for num_columns in sizes if num_columns > SHORT) <= 24
        sizes.clear()


@pytest.mark.parametrize("num_first", [0, 1])
def test_a_long_text_drafts_after_its_window(path: str, num_first: int) -> None:
    rig = Rig(path, 2, max_length=48, num_first=num_first)
    rig.append(0, rig.new(9))
    moved = 0
    for _ in range(30):
        rig.append(1, rig.new(5))
        before = len(rig.texts[1])
        assert 0 in rig.draft(0, 1)
        moved += len(rig.texts[1]) < before
    assert moved > 2


def test_out_of_time_a_draft_has_one_token(path: str) -> None:
    rig = Rig(path, 2, seconds=0.0)
    for row in range(2):
        rig.append(row, rig.new(4))
    assert rig.draft(0, 1, num_tokens=8) == [0, 1]
    assert [len(rig.drafts[row]) for row in range(2)] == [1, 1]


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_texts_without_ids_get_no_draft(path: str, empty: int) -> None:
    """The chooser sees a row for each text, also for those that are empty."""
    rig = Rig(path, 3)
    texts = dict(enumerate(rig.texts))
    for row in {0, 1, 2} - {empty}:
        rig.append(row, rig.new(6))
    shapes = []

    def choose(step: int, logits: Tensor) -> Tensor:
        shapes.append(tuple(logits.shape))
        return most_likely(step, logits)

    ready, ids = rig.drafter.draft(texts, 2, choose)
    assert ready == sorted({0, 1, 2} - {empty})
    assert (tuple(ids.shape), set(shapes)) == ((3, 2), {(3, VOCAB)})


def test_nothing_to_draft_for(path: str) -> None:
    rig = Rig(path, 2)
    ready, ids = rig.drafter.draft(dict(enumerate(rig.texts)), 2, most_likely)
    assert (ready, ids.shape, ids.dtype) == ([], (0, 0), torch.int64)


def test_the_chooser_decides_what_comes_next(path: str) -> None:
    rig = Rig(path, 2)
    rig.append(0, rig.new(30))
    rig.append(1, rig.new(2))
    drawn = torch.tensor([[7, 8, 9], [50, 51, 52]])
    after: list[Tensor] = []

    def choose(step: int, logits: Tensor) -> Tensor:
        after.append(logits.argmax(-1))
        return drawn[:, step]

    _, ids = rig.drafter.draft(dict(enumerate(rig.texts)), 3, choose)
    assert torch.equal(ids, drawn)
    for row in range(2):
        for step in range(3):
            assert [int(after[step][row])] == greedy(path, [*rig.ids[row], *drawn[row, :step].tolist()], 1)
