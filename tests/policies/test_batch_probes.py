"""When the plan halves of `batch` try something else."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specplug_batch.gate import REST, Probes


def probes_until(last: int, *, resumes: bool) -> list[int]:
    probes = Probes()
    return [step for step in range(last) if probes.is_due(step, resumes=resumes)]


def test_probes_become_rare():
    waits = [after - before for before, after in pairwise(probes_until(3000, resumes=False))]
    assert waits[:9] == [4, 8, 16, 32, 64, 128, 256, 512, 512]


def test_probes_that_resume_drafting_take_two_steps():
    found = probes_until(3000, resumes=True)
    assert found[:10] == [4, 5, 8, 9, 20, 21, 56, 57, 164, 165]
    assert all(second == first + 1 for first, second in zip(found[::2], found[1::2], strict=True))


def test_after_200_steps_they_are_at_most_half_a_per_cent():
    found = probes_until(20000, resumes=True)
    for last in range(600, 20000):
        assert sum(200 <= step < last for step in found) <= 0.005 * (last - 200) + 1


def test_no_rest_is_longer_than_the_time_to_the_next_probe():
    probes = Probes()
    for step in range(1000):
        if probes.is_due(step, resumes=True):
            continue
        rest = probes.rest(step)
        assert 1 <= rest <= REST
        assert not any(probes.is_due(later) for later in range(step + 1, step + rest))


@pytest.mark.parametrize("resumes", [False, True])
def test_a_change_lets_them_come_sooner(resumes):
    calm, changed = Probes(), Probes()
    for step in range(2000):
        assert calm.is_due(step, resumes=resumes) is changed.is_due(step, resumes=resumes)
    changed.hasten()
    counts = [sum(each.is_due(step, resumes=resumes) for step in range(2000, 4000)) for each in (calm, changed)]
    assert counts[1] > counts[0]
