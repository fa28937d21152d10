"""What drafts are expected to yield, and their cut to the plan: the compiled form equals a loop over tokens."""

from __future__ import annotations

import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu.records import borrowed, record
from specplug.pipeline.cpu.host_function import StepControl, _control_at, _cut_to_plan, _sum_survivals
from specplug.pipeline.cpu.kernels import NO_PARENTS
from specplug.types.draft import NO_TOKEN

ROWS, LONGEST = 5, 4


@numba.njit(nogil=True, error_model="numpy")  # not cached: the cache would not see changes of what it calls
def both(step):
    it = borrowed(step)
    control = _control_at(it.control)
    _sum_survivals(it, control)
    _cut_to_plan(it.memory, control)


@st.composite
def batches(draw):
    """Draw the columns of a batch; the entries of each are lists by row."""
    count = draw(st.integers(0, ROWS))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    parents = [[draw(st.integers(-1, k - 1)) for k in range(LONGEST)] for _ in range(count)]
    return {
        "lengths": column(st.integers(0, LONGEST)),
        "confidence": column(st.lists(st.floats(0, 1), min_size=LONGEST, max_size=LONGEST)),
        "parents": parents if draw(st.booleans()) else [list(range(-1, LONGEST - 1))] * count,
        "emitted": column(st.integers(0, 2)),
        "late": column(st.booleans()),
        "own": column(st.sampled_from([0, 1, 99])),
        "caps": column(st.sampled_from([0, 1, 2, 99])),
        "has_ended": column(st.booleans()),
        "slots": draw(st.permutations(range(ROWS)))[:count],
    }


@settings(max_examples=60)
@given(batches(), st.integers(0, LONGEST), st.booleans())
def test_sums_and_cuts_are_those_of_a_loop_over_tokens(batch, draft_length, trees):
    count, late, sums = len(batch["lengths"]), np.array(batch["late"], np.int32), np.zeros(LONGEST + 1)
    chain = list(range(-1, LONGEST - 1))
    parents = batch["parents"] if trees else [chain] * count
    memory = {
        "slots": np.array(batch["slots"], np.int64),
        "table": np.zeros((ROWS, 5), np.int64),
        "stopped": np.full(ROWS, -1, np.int64),
        "emitted": np.array(batch["emitted"], np.int32),
        "caps": np.array(batch["caps"], np.int32),
        "draft_lengths": np.array(batch["lengths"], np.int32),
        "ids": np.full((count, LONGEST), 7, np.int32),
        "confidence": np.array(batch["confidence"], np.float32).reshape(count, LONGEST),
        "sources": np.zeros((count, LONGEST), np.int32),
        "parents": np.array(parents, np.int32).reshape(count, LONGEST) if trees else NO_PARENTS,
    }
    for row, slot in enumerate(batch["slots"]):
        memory["table"][slot, [0, 2]] = 10 + row, batch["own"][row]
        memory["stopped"][slot] = 10 + row if batch["has_ended"][row] else 3
    control = StepControl(batch_size=count, draft_length=draft_length, longest=LONGEST)
    control.late, control.sums = late.ctypes.data, sums.ctypes.data
    survivals = np.zeros(LONGEST, np.float32)
    confidence = memory["confidence"].copy()
    both(record(memory=record(**memory), control=control.address, survivals=survivals))

    expected = [0.0] * (LONGEST + 1)
    for row in range(count):
        may_draft = batch["emitted"][row] > 0 and batch["own"][row] > 0
        if may_draft and not batch["late"][row] and not batch["has_ended"][row]:
            expected[0] += 1
            path = []
            for k in range(batch["lengths"][row]):
                above = path[parents[row][k]] if parents[row][k] >= 0 else np.float32(1)
                path.append(above * confidence[row, k])
                expected[k + 1] += float(path[k])
        kept = min(batch["lengths"][row], draft_length, batch["caps"][row])
        assert memory["draft_lengths"][row] == kept
        assert memory["ids"][row].tolist() == [7] * kept + [NO_TOKEN] * (LONGEST - kept)
        assert memory["confidence"][row].tolist() == [*confidence[row, :kept], *[0.0] * (LONGEST - kept)]
    assert sums.tolist() == expected
