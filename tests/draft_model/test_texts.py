"""Texts on a device hold what plain lists hold: translated by token, cut to a window, cached up to a difference."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.draft_model.texts import NO_REQUEST, DraftTexts, Running
from specplug.text.translate.tables import TokenLists
from tests.text.translate.tools import ids_of

LENGTH, ROWS, DRAFTED, SLOTS = 64, 3, 4, 5
TABLE = TokenLists.of([[1], [2, 3], [], [4, 5, 6], None, [7], [8, 9]])  # the fifth id is of no token
PREFIX, SKIPPED = (50, 51), (0, 5)
WRONG = 4


@dataclass
class Plain:
    """One request: its tokens, and the ids of its window as plain lists."""

    owner: int
    tokens: list[int] = field(default_factory=list)
    done: int = 0
    ids: list[int] = field(default_factory=lambda: list(PREFIX))
    cached: list[int] = field(default_factory=list)

    def take(self, num_tokens: int, growth: int) -> None:
        new: list[int] = []
        for place in range(self.done, min(self.done + num_tokens, len(self.tokens))):
            token = self.tokens[place]
            if token == WRONG:
                break
            ids = [] if place < len(SKIPPED) and token == SKIPPED[place] else ids_of(TABLE, token)
            if len(new) + len(ids) > growth:
                break
            new += ids
            self.done += 1
        if len(self.ids) + len(new) + DRAFTED + 1 > LENGTH:
            first = self.ids[: len(PREFIX)]
            moved = min(len(self.ids) - len(first), len(self.ids) + len(new) - LENGTH // 2)
            self.ids = first + self.ids[len(first) + moved :]
            self.cached = []
        self.ids += new

    def skip(self) -> None:
        """Begin with the newest tokens if there are more new ones than a window has."""
        if len(self.tokens) - self.done > LENGTH:
            self.done, self.ids, self.cached = len(self.tokens) - LENGTH // 2, list(PREFIX), []

    def compute(self, most: int, keep: int) -> list[int]:
        same = 0
        while same < min(len(self.cached), len(self.ids) - 1) and self.cached[same] == self.ids[same]:
            same += 1
        new = self.ids[same : min(same + most, len(self.ids) - keep)]
        self.cached = self.ids[:same] + new
        return new


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, list[int], int, bool, list[int]]]:
    """Draw steps: a row, new tokens for it, how many are taken at once, whether it begins anew, and a draft."""
    tokens = st.lists(st.sampled_from([0, 1, 2, 3, 5, 6, 1, 3, 6]), max_size=12)
    step = st.tuples(
        st.integers(0, ROWS - 1),
        tokens,
        st.integers(1, 9),
        st.booleans(),
        st.lists(st.integers(1, 9), max_size=DRAFTED),
    )
    return draw(st.lists(step, min_size=1, max_size=40))


@settings(max_examples=60)
@given(steps(), st.booleans(), st.booleans())
def test_they_are_those_of_plain_lists(
    steps: list[tuple[int, list[int], int, bool, list[int]]], wrong: bool, is_exact: bool
) -> None:
    texts = made(is_exact=is_exact)
    plain = [Plain(owner) for owner in range(ROWS)]
    table = torch.full((SLOTS, 1000), -7, dtype=torch.int32)
    entries = torch.tensor([3, 0, 4])
    for number, (row, tokens, count, is_new, drafted) in enumerate(steps):
        if is_new:
            plain[row] = Plain(100 + number)
        plain[row].tokens += tokens + [WRONG] * (wrong and number == 5)
        plain[row].skip()
        for entry, it in zip(entries.tolist(), plain, strict=True):
            table[entry, : len(it.tokens)] = torch.tensor(it.tokens, dtype=torch.int32)
        running = of(plain)
        texts.begin(running)
        rows = slice(ROWS)
        growth = texts.growth(count)
        texts.extend(running, rows, texts.newest(table, entries, rows, count))
        texts.rejoin(rows)
        missing = texts.missing(rows, 6, keep=number % 2)
        ready = texts.is_ready(running).tolist()
        for at, it in enumerate(plain):
            it.take(count, growth)
            new = it.compute(6, number % 2)
            assert texts.ids[at, : int(texts.lengths[at])].tolist() == it.ids
            assert int(texts.done[at]) == it.done
            columns = missing.ids.shape[1]
            assert missing.ids[at, columns - len(new) :].tolist() == new
            assert (int(missing.starts[at]), int(missing.counts[at])) == (len(it.cached) - len(new), len(new))
            is_whole = it.done == len(it.tokens) and len(it.cached) == len(it.ids)
            assert ready[at] == is_whole
            is_blocked = it.done < len(it.tokens) and it.tokens[it.done] == WRONG
            assert is_blocked or not texts.is_broken[at]
        fed = torch.tensor([drafted[:-1] if ok and drafted else [] for ok in ready][row : row + 1], dtype=torch.int64)
        counts = torch.zeros(ROWS, dtype=torch.int64)
        counts[row] = fed.shape[1]
        texts.feed(rows, fed.expand(ROWS, -1), counts)
        plain[row].cached += fed[0].tolist()
        assert (texts.lengths + DRAFTED + 1 <= LENGTH).all()


def made(table: TokenLists = TABLE, *, is_exact: bool = False) -> DraftTexts:
    return DraftTexts(
        table,
        PREFIX,
        SKIPPED,
        max_texts=ROWS,
        max_length=LENGTH,
        num_drafted=DRAFTED,
        device=torch.device("cpu"),
        is_exact=is_exact,
    )


def of(plain: list[Plain]) -> Running:
    return Running(
        torch.tensor([it.owner for it in plain]),
        torch.tensor([len(it.tokens) for it in plain]),
        torch.zeros(ROWS).long(),
    )


def test_a_row_without_a_request_is_left_alone() -> None:
    texts = made()
    table, entries, rows = torch.ones(SLOTS, 9, dtype=torch.int32), torch.zeros(ROWS).long(), slice(ROWS)
    both = Running(torch.tensor([1, 2, NO_REQUEST]), torch.tensor([9, 9, 0]), torch.zeros(ROWS).long())
    one = Running(torch.tensor([1, NO_REQUEST, NO_REQUEST]), torch.tensor([9, 0, 0]), torch.zeros(ROWS).long())
    for running, count in ((both, 2), (one, 7), (both, 7)):
        texts.begin(running)
        texts.extend(running, rows, texts.newest(table, entries, rows, count))
        texts.missing(rows, 100)
        if running is one:
            assert texts.done.tolist() == [9, 2, 0]
            assert texts.is_ready(running).tolist() == [True, False, False]
    assert texts.done.tolist() == [9, 9, 0]
    assert texts.figures(both)[:, 1].tolist() == [0, 0, 20]


def test_a_text_begins_after_what_is_no_text() -> None:
    table, entries, rows = torch.ones(SLOTS, 9, dtype=torch.int32), torch.zeros(ROWS).long(), slice(1)
    texts = made()
    for start, expected in ((0, 16), (5, 6)):
        running = Running(torch.tensor([start]), torch.tensor([7]), torch.tensor([start]))
        texts.begin(running)
        texts.extend(running, rows, texts.newest(table, entries[:1], rows, 7))
        assert int(texts.lengths[0]) == expected


def test_a_token_with_more_ids_than_a_text_has_room_for_counts_as_none() -> None:
    texts = made(TokenLists.of([[1], list(range(LENGTH))]))
    running = Running(torch.tensor([1]), torch.tensor([2]), torch.zeros(1).long())
    texts.begin(running)
    texts.extend(running, slice(1), torch.tensor([[0, 1]]))
    assert bool(texts.is_broken[0])
    assert texts.figures(running).tolist() == [[0], [0], [0]]


def test_ids_of_tokens_are_counted() -> None:
    assert made().ids_of(torch.tensor([[0, 1, 3], [WRONG, -1, 99]])).tolist() == [[1, 2, 3], [0, 0, 0]]


def test_one_tokenizers_ids_are_their_own() -> None:
    table = TokenLists.identity(3, 5)
    assert [ids_of(table, token) for token in range(3)] == [[0], [1], [2]]
    assert table.counts.tolist() == [1, 1, 1, -1, -1]
    assert table.mean_length == 1.0
    assert np.isclose(TokenLists.of([[1], [1, 2, 3]]).mean_length, np.sqrt(2))
