"""The standing test's own tools."""

from __future__ import annotations

import itertools
from dataclasses import astuple, fields

import pytest

from tests.engines.fields import SITUATIONS, Row, Situation, assert_complete, pairs

ROWS = [Row(str(number)) for number in range(8)]


def test_each_row_meets_each_value_and_the_rows_each_pair():
    met = [(row.name, *astuple(situation)) for row, situation in pairs(ROWS)]
    for name, place in itertools.product(map(str, range(8)), range(1, 5)):
        assert len({each[place] for each in met if each[0] == name}) == 2
    for one, other in itertools.combinations(range(1, 5), 2):
        assert len({(each[one], each[other]) for each in met}) == 4
    assert len(SITUATIONS) == 2 ** len(fields(Situation))


@pytest.mark.parametrize("defined", [["0", "1", "new"], ["0"]])
def test_a_field_without_a_row_and_a_row_without_a_field_fail(defined):
    assert_complete(ROWS[:2], ["0", "1"], "definition")
    with pytest.raises(AssertionError, match="differ"):
        assert_complete(ROWS[:2], defined, "definition")


def test_every_fate_but_equality_has_a_reason():
    Row("name", fate="refused", why="because")
    for row in ({"fate": "refused"}, {"why": "because"}):
        with pytest.raises(AssertionError):
            Row("name", **row)
