"""A ring hands out an object again only after the mark of its last use, whenever the stream runs."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import carray, cfunc

from specplug.errors import ContractError
from specplug.pipeline.stream.launch import HostFunctionStream, InlineStream, Mark, Ring
from tests.pipeline.fake_stream import FakeStream

POISON = -1
SIZE = 64
BY_HOST, BY_PACK, BY_FUNCTION = range(3)


@cfunc("void(voidptr)")
def combine(address):
    """Write what a step's function makes of what the host and the pack kernel wrote."""
    rows = carray(address, (3, SIZE), np.int64)
    for place in range(SIZE):
        rows[BY_FUNCTION, place] = 1000 * rows[BY_HOST, place] + rows[BY_PACK, place]


class Buffers:
    """The memory of a step: [3, SIZE] int64, written by the host, by a kernel and by a host function."""

    def __init__(self) -> None:
        self.rows = np.full((3, SIZE), POISON)
        self.step = POISON


class Steps:
    """Steps in a stream, as the draft stage makes them, each with a pattern of its own.

    Attributes:
        results: step and [SIZE] figures of the host function, as the unpack kernel read them.
        finished: the steps that the ring finished, in order.
    """

    def __init__(self, stream: HostFunctionStream, enqueue, marks: HostFunctionStream | None = None) -> None:
        self._stream, self._enqueue, self._marks = stream, enqueue, marks or stream
        self.results: list[tuple[int, list[int]]] = []
        self.finished: list[int] = []
        self.in_flight: list[tuple[Buffers, Mark]] = []
        self.ring = Ring(Buffers, lambda buffers: self.finished.append(buffers.step))
        self.count = 0

    def step(self) -> None:
        """Enqueue a step: the host writes at once, and all else runs when the stream gets there."""
        buffers, step = self.ring.take(), self.count
        self.count += 1
        buffers.rows[:] = POISON
        buffers.rows[BY_HOST], buffers.step = step, step
        self._enqueue(lambda: buffers.rows[BY_PACK].fill(step))
        self._stream.launch(combine.address, buffers.rows.ctypes.data)
        self._enqueue(lambda: self.results.append((step, buffers.rows[BY_FUNCTION].tolist())))
        mark = self._marks.mark()
        self.ring.give_back(buffers, mark)
        self.in_flight.append((buffers, mark))

    def expected(self) -> list[tuple[int, list[int]]]:
        return [(step, [1001 * step] * SIZE) for step in range(self.count)]


RUN = st.integers(1, 7)  # pieces of work; three make a step
ACTIONS = st.lists(st.one_of(st.just("step"), st.just("collect"), RUN), max_size=40)


@given(actions=ACTIONS)
def test_buffers_are_not_used_again_before_their_mark_in_any_interleaving(actions):
    with FakeStream() as stream:
        steps = Steps(stream, stream.enqueue)
        most = 0
        for action in actions:
            if action == "step":
                unfinished = [buffers for buffers, mark in steps.in_flight if not mark.reached]
                steps.step()
                assert all(steps.in_flight[-1][0] is not buffers for buffers in unfinished)
                most = max(most, len(unfinished) + 1)
            elif action == "collect":
                steps.ring.collect()
                assert steps.finished == list(range(sum(mark.reached for _, mark in steps.in_flight)))
            else:
                stream.run(action)
        assert len(steps.ring) == most, "one per step in flight"
        steps.ring.collect(waits=True)
    assert steps.results == steps.expected()
    assert steps.finished == list(range(steps.count))


def test_the_same_steps_go_wrong_with_marks_that_are_reached_too_early():
    with FakeStream() as stream:
        steps = Steps(stream, stream.enqueue, marks=InlineStream())
        steps.step()
        steps.step()
        stream.drain()
    assert steps.results != steps.expected()


def test_objects_live_as_long_as_the_ring_and_are_not_used_again_unless_they_are_given_back():
    ring, stream = Ring(Buffers), FakeStream()
    taken = [ring.take() for _ in range(3)]
    alive = [weakref.ref(buffers) for buffers in taken]
    stream.enqueue(print)
    for buffers in taken[:2]:
        ring.give_back(buffers, stream.mark())  # the third is dropped, as by a step that raised
    del taken, buffers
    gc.collect()
    others = [ring.take() for _ in range(3)]
    assert all(it() is not None and it() not in others for it in alive)
    assert len(ring) == 6
    stream.close(run=False)
    del ring, others
    gc.collect()
    assert all(it() is None for it in alive)


def test_only_a_taken_object_is_given_back_and_only_once():
    ring, mark = Ring(Buffers), InlineStream().mark()
    with pytest.raises(ContractError, match="not taken"):
        ring.give_back(Buffers(), mark)
    buffers = ring.take()
    ring.give_back(buffers, mark)
    with pytest.raises(ContractError, match="not taken"):
        ring.give_back(buffers, mark)


def test_an_error_of_finish_is_raised_and_the_object_is_free_again():
    def fail(_: Buffers) -> None:
        raise ValueError("status")

    ring, mark = Ring(Buffers, fail), InlineStream().mark()
    buffers = ring.take()
    ring.give_back(buffers, mark)
    with pytest.raises(ValueError, match="status"):
        ring.take()
    assert ring.take() is buffers
