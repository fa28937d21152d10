"""The comparison of policies with constant draft lengths."""

from __future__ import annotations

import pytest

from benchmarks.policy_sglang import Counts, table, to_constants

CONSTANTS = [Counts(1.0, 2.0), Counts(0.5, 1.6)]


def test_a_policy_is_compared_at_equal_verified_tokens():
    assert to_constants(Counts(0.75, 1.8), CONSTANTS) == pytest.approx(1.0)
    assert to_constants(Counts(0.25, 1.17), CONSTANTS) == pytest.approx(0.9)  # half way from no speculation, 1.3
    assert to_constants(Counts(1.01, 5.0), CONSTANTS) is None


def test_the_table_compares_policies_alone():
    found = {"policy": Counts(0.5, 2.0), "one": CONSTANTS[0], "two": CONSTANTS[1]}
    assert [row[3] for row in table(found, ["policy"])] == ["1.250", "", ""]
    assert table({**found, "policy": Counts(2.0, 9.0)}, ["policy"])[0][3] == "beyond"
