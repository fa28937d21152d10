"""How much of a prediction a completion contains, token by token, in whatever pieces it comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.requests import wire
from specplug.requests.predicted import _RUN, Predicted
from specplug.types.request import Reference, RequestOptions

PREDICTION = list(range(10, 30))


def predicted(prediction: list[int], name: str = "prediction") -> Predicted:
    found = Predicted()
    references = (Reference(np.array(prediction, np.int32), name),)
    found.read({wire.WIRE_KEY: wire.encode(RequestOptions(), references, None)})
    return found


def counted(prediction: list[int], *completions: list[int]) -> tuple[int, int]:
    found = predicted(prediction)
    for number, completion in enumerate(completions):
        found.extend(number, completion)
    return tuple(found.details().values())  # type: ignore[return-value]


EDITED = [*PREDICTION[:8], 90, 91, *PREDICTION[9:]]


@pytest.mark.parametrize(
    ("prediction", "completions", "expected"),
    [
        (PREDICTION, [PREDICTION], (20, 0)),
        (PREDICTION, [[*PREDICTION, 1]], (20, 0)),  # the end of sequence is in no prediction
        (PREDICTION, [EDITED], (19, 1)),
        (PREDICTION, [[*PREDICTION[:8], *PREDICTION[12:]]], (16, 4)),
        (PREDICTION, [[*PREDICTION[:8], 90, *PREDICTION[8:]]], (20, 0)),
        (PREDICTION, [[*PREDICTION, *PREDICTION]], (20, 0)),  # what comes again is counted once
        ([5, 6, 7] * 4, [[5, 6, 7] * 9], (12, 0)),
        (PREDICTION, [PREDICTION[:7]], (7, 13)),
        (PREDICTION, [[]], (0, 20)),
        (PREDICTION, [[90] * 50], (0, 20)),
        (PREDICTION, [PREDICTION, PREDICTION[:5]], (25, 15)),  # several completions count together
        ([0, 1, 0, 0, 0], [[0, 0, 0]], (3, 2)),  # a token that was followed is no part of a later run
    ],
)
def test_what_completions_contain_is_accepted(prediction, completions, expected):
    assert counted(prediction, *completions) == expected


def test_without_a_prediction_there_are_no_counts():
    assert Predicted().details() == {}
    found = predicted(PREDICTION, name="area.py")
    found.extend(0, PREDICTION)
    assert found.details() == {}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(0, 3), max_size=30), st.data())
def test_pieces_change_nothing_and_counts_add_up(prediction, completion, data):
    whole = predicted(prediction)
    pieces = predicted(prediction)
    start = 0
    whole.extend(0, completion)
    pieces.extend(0, [])
    while start < len(completion):
        size = data.draw(st.integers(1, 5))
        pieces.extend(0, completion[start : start + size])
        start += size
    accepted, rejected = whole.details().values()
    assert whole.details() == pieces.details()
    assert accepted + rejected == len(prediction)
    assert 0 <= accepted <= min(len(completion), len(prediction))


def scanned(prediction: list[int], completion: list[int]) -> int:
    """Return the tokens that a completion contains, by a scan of the prediction at each token that departs."""
    size = min(_RUN, len(prediction))
    seen = [False] * len(prediction)
    following = 0
    unmatched = 0
    for end, token in enumerate(completion, 1):
        place = following
        if 0 <= place < len(prediction) and prediction[place] == token:
            seen[place] = True
        else:
            run = completion[max(0, end - size) : end]
            ends = range(size - 1, len(prediction))
            alike = (each for each in ends if prediction[each + 1 - size : each + 1] == run and not seen[each])
            place = next(alike, -1)
            unmatched = min(unmatched + 1, size)
            for each in range(max(0, place + 1 - unmatched), place + 1):
                seen[each] = True
        unmatched = 0 if place >= 0 else unmatched
        following = place + 1 if place >= 0 else -1
    return sum(seen)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.lists(st.integers(0, 3), max_size=60))
def test_runs_that_are_sorted_find_what_a_scan_finds(prediction, completion):
    assert counted(prediction, completion)[0] == scanned(prediction, completion)
