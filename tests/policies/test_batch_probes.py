"""When the plan halves of `batch` try something else."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specplug_batch.gains import REST, Probes


def probes_until(last: int, *, resumes: int) -> list[int]:
    probes = Probes()
    return [step for step in range(last) if probes.is_due(step, resumes=resumes)]


def test_probes_become_rare():
    waits = [after - before for before, after in pairwise(probes_until(3000, resumes=0))]
    assert waits[:9] == [4, 8, 16, 32, 64, 128, 256, 512, 512]


def test_probes_that_resume_drafting_become_less_rare():
    many, one = ([b - a for a, b in pairwise(probes_until(3000, resumes=requests))] for requests in (8, 1))
    assert many[:9] == [4, 8, 16, 32, 64, 128, 256, 256, 256]
    assert one[:9] == [4, 8, 16, 32, 64, 64, 64, 64, 64]


@pytest.mark.parametrize(("added", "wait"), [(0.4, 64), (0.04, 10), (0.001, 4)])
def test_probes_come_as_often_as_a_share_of_the_time_allows(added, wait):
    probes = Probes()
    found = [step for step in range(3000) if probes.is_due(step, resumes=1, added=added)]
    assert {after - before for before, after in pairwise(found[8:])} == {wait}


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_probe_that_found_something_goes_on_once(lag):
    """Its report comes `lag` steps later, and so do those of the steps in which it goes on."""
    probes, found = Probes(), []
    for step in range(300):
        if step - lag in found:
            probes.follow(step - lag)
        if probes.is_due(step, resumes=8):
            found.append(step)
        elif found:
            assert probes.rest(step) == 1 or step - found[-1] > lag
    assert [step for step in found if step >= 128] == [128, *range(128 + lag, 136), 256, *range(256 + lag, 264)]


def test_after_200_steps_they_are_at_most_half_a_per_cent():
    found = probes_until(20000, resumes=8)
    for last in range(600, 20000):
        assert sum(200 <= step < last for step in found) <= 0.005 * (last - 200) + 1


def test_no_rest_is_longer_than_the_time_to_the_next_probe():
    probes = Probes()
    for step in range(1000):
        if probes.is_due(step, resumes=8):
            continue
        rest = probes.rest(step)
        assert 1 <= rest <= REST
        assert not any(probes.is_due(later) for later in range(step + 1, step + rest))


@pytest.mark.parametrize("resumes", [0, 8])
def test_a_change_lets_them_come_sooner(resumes):
    calm, changed = Probes(), Probes()
    for step in range(2000):
        assert calm.is_due(step, resumes=resumes) is changed.is_due(step, resumes=resumes)
    changed.hasten()
    counts = [sum(each.is_due(step, resumes=resumes) for step in range(2000, 4000)) for each in (calm, changed)]
    assert counts[1] > counts[0]
