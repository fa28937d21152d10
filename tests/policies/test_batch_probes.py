"""When the plan halves of `batch` try something else."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specplug_batch.gate import REST, Probes


def probes_until(last: int, *, resumes: bool) -> list[int]:
    probes = Probes()
    return [step for step in range(last) if probes.is_due(step, resumes=resumes)]


def test_probes_become_rare():
    found = probes_until(3000, resumes=False)
    waits = [after - before for before, after in pairwise(found)]
    assert waits[:9] == [4, 8, 16, 32, 64, 128, 256, 512, 512]


def test_a_probe_that_resumes_drafting_takes_two_steps():
    found = probes_until(3000, resumes=True)
    single = probes_until(3000, resumes=False)
    assert found == sorted([*single, *(step + 1 for step in single)])


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
    probes = Probes()
    rare = [step for step in range(2000) if probes.is_due(step, resumes=resumes)]
    probes.hasten()
    later = [step for step in range(2000, 4000) if probes.is_due(step, resumes=resumes)]
    assert len(later) > len([step for step in rare if step > 500])
