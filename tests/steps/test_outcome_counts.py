"""Counts of an engine's own drafts, taken on the host, equal those that `SpecMetrics` takes of the same steps."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.metrics import NO_SOURCE, SpecMetrics
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.types.step import Verdict

LONGEST = 4
ROWS = st.integers(0, LONGEST).flatmap(lambda verified: st.tuples(st.just(verified), st.integers(0, verified)))
STEPS = st.lists(st.tuples(st.lists(ROWS, max_size=5), st.integers(0, 3), st.integers(0, 3)), max_size=6)
"""Steps: (verified, accepted) of each row with a draft, and the numbers of rows without one that could draft or not."""


def verdict(rows):
    """Return the verdict on rows (verified, accepted), all of which emit one token more than they accept."""
    verified, accepted = (torch.tensor([row[i] for row in rows], dtype=torch.int32) for i in range(2))
    zeros = torch.zeros_like(verified)
    return Verdict(verified, verified, accepted, zeros, accepted + 1, zeros)


@settings(max_examples=50)
@given(steps=STEPS)
def test_counts_are_those_of_the_device_counters(steps):
    counts, reference = OutcomeCounts("eagle", LONGEST), SpecMetrics(["eagle"], LONGEST)
    for drafted, plain, off in steps:
        fates = [(str(i), verified, accepted) for i, (verified, accepted) in enumerate(drafted)]
        rows, emitted = len(drafted) + plain + off, plain + off + sum(accepted + 1 for _, accepted in drafted)
        counts.record(fates, rows, emitted, off)
        if drafted:
            reference.record(torch.zeros(len(drafted), LONGEST, dtype=torch.int32), verdict(drafted))
        reference.record_on_host(plain)
        reference.record_on_host(off, planned=False)
    assert counts.snapshot({}) == reference.snapshot()


def test_faults_of_others_are_part_of_a_snapshot():
    snapshot = OutcomeCounts("mtp", 2).snapshot({"policy batch": {"raised": 2}})
    assert snapshot.faults == {"policy batch": {"raised": 2}}
    assert list(snapshot.by_source) == ["mtp", NO_SOURCE]
