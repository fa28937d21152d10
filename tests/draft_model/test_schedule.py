"""What the host decides for texts on a device: rows of the cache, what is caught up, and how long texts can be."""

from __future__ import annotations

import pytest
import torch

from specplug.draft_model.schedule import NO_ROW, AsyncReadback, IdsPerToken, Readback, Schedule

CPU = torch.device("cpu")


def figures(*rows: tuple[int, int, int]) -> torch.Tensor:
    """Return missing tokens, missing ids and ids of rows, [3, R]."""
    return torch.tensor(rows).T.contiguous()


class Late(AsyncReadback):
    """Numbers that arrive a step after they were sent, as a GPU's do."""

    is_late = True

    def take(self) -> Readback | None:
        if not self.is_free and self.is_late:
            self.is_late = False
            return None
        self.is_late = True
        return super().take()


def of_a_gpu(max_rows: int) -> Schedule:
    """Return a schedule of four slots that learns late."""
    schedule = Schedule(4, max_rows, 64, CPU)
    schedule._polled = Late((3, max_rows), CPU)
    return schedule


def test_on_a_cpu_figures_are_learnt_at_once_and_the_host_counts_what_comes() -> None:
    schedule = Schedule(2, 2, 64, CPU)
    schedule.begin(1, 0)
    schedule.add(1, 40)
    schedule.add(0, 7)  # has no row
    assert schedule.to_catch_up(512, 8) == [(0, 40)]
    schedule.end(figures((12, 8, 30), (0, 0, 0)))
    assert schedule.to_catch_up(512, 8) == [(0, 20)]


def test_slots_have_the_lowest_free_rows() -> None:
    schedule = Schedule(6, 2, 64, CPU)
    for slot in (4, 2, 0):
        schedule.begin(slot, 5)
    assert schedule.row_of_slot().tolist() == [NO_ROW, NO_ROW, 1, NO_ROW, 0, NO_ROW]
    assert schedule.num_rows == 2
    schedule.release(4)
    schedule.release(0)
    assert schedule.num_rows == 2
    schedule.begin(5, 5)
    schedule.begin(2, 5)
    assert schedule.row_of_slot().tolist() == [NO_ROW, NO_ROW, 1, NO_ROW, NO_ROW, 0]
    schedule.release(2)
    assert schedule.num_rows == 1


def test_the_shortest_are_caught_up_first_and_what_arrives_late_is_not_done_again() -> None:
    schedule = of_a_gpu(4)
    for slot, num_tokens in enumerate((700, 100, 8, 50)):
        schedule.begin(slot, num_tokens)
    assert schedule.to_catch_up(512, 8) == [(3, 50), (1, 100), (0, 362)]
    schedule.end(figures((700, 0, 0), (100, 0, 0), (8, 0, 0), (50, 0, 0)))  # sent before
    for row, count in ((3, 50), (1, 100), (0, 362)):
        schedule.caught_up(row, count)
    assert schedule.to_catch_up(512, 8) == [(0, 338)]
    schedule.end(figures((338, 20, 30), (0, 0, 30), (0, 0, 30), (0, 30, 30)))
    assert schedule.to_catch_up(512, 8) == [(0, 338)], "as figures of the step before tell, without what was done since"
    schedule.end(figures((0, 0, 60), (0, 0, 30), (0, 0, 30), (0, 0, 30)))
    assert schedule.to_catch_up(512, 8) == [(3, 30), (0, 358)]


def test_figures_of_an_earlier_request_say_nothing_of_the_next_one() -> None:
    schedule = of_a_gpu(1)
    schedule.begin(0, 30)
    schedule.end(figures((30, 0, 0)))
    schedule.begin(1, 40)
    schedule.release(0)
    schedule.begin(1, 40)
    schedule.end(figures((0, 0, 30)))
    assert schedule.to_catch_up(512, 8) == [(0, 40)]


def test_texts_are_as_long_as_they_can_have_become() -> None:
    schedule = Schedule(2, 2, 1000, CPU)
    schedule.begin(0, 0)
    lengths = [0]
    for step in range(20):
        schedule.grow(7)
        lengths.append(lengths[-1] + (step % 8))
        assert lengths[-1] <= schedule.longest
        schedule.end(figures((0, 0, lengths[-1]), (0, 0, 1)))
    assert schedule.longest <= lengths[-1] + 14
    schedule.grow(5000)
    assert schedule.longest == 1000


def test_ids_for_a_token_are_learnt_from_what_was_emitted() -> None:
    ids = IdsPerToken(1.5, CPU)
    assert ids.value == 1.5
    for _ in range(400):
        ids.learn(torch.tensor(50), torch.tensor(40))
    assert ids.value == pytest.approx(1.25, abs=0.01)
    for _ in range(400):
        ids.learn(torch.tensor(400), torch.tensor(40))
    assert ids.value == 2.0
