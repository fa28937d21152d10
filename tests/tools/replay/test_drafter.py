"""Replays with a simulated drafter of the engine's own, alone and with lookup after it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.tools.replay.engine import Setup
from specplug.tools.replay.run import SimulatedDrafter, replay
from specplug.tools.replay.score import Offer
from tests.tools.replay.tools import EOS, ITEMS, item

FRESH = [item([900], range(100 * k, 100 * k + 80), f"fresh-{k}") for k in range(1, 6)]
"""Nothing repeats, so lookup drafts next to nothing that is right."""


def test_tokens_are_right_as_often_as_stated():
    rates, right, tries = (0.8, 0.3, 0.6), [0, 0, 0], [0, 0, 0]
    for number in range(1000):
        output = item([1], range(1, 30), f"item-{number}").output.tolist()
        drafter = SimulatedDrafter(item([1], output[:-1], f"item-{number}"), rates)
        for place in range(1, len(output) - 3):
            count = Offer(drafter.draft(place)).accepted(output[place:])
            for position in range(min(count + 1, 3)):
                tries[position] += 1
                right[position] += count > position
    assert [hits / total for hits, total in zip(right, tries, strict=True)] == pytest.approx(rates, abs=0.03)


@given(ITEMS, st.sampled_from([(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]))
def test_drafts_are_right_up_to_the_end_of_an_output_or_not_at_all(items, rates):
    for request in items:
        output, drafter = request.output.tolist(), SimulatedDrafter(request, rates)
        for place in range(1, len(output)):
            rest = output[place : place + 2]
            assert Offer(drafter.draft(place)).accepted(output[place:]) == min(
                rates.index(0.0) if 0.0 in rates else 2, len(rest)
            )
            assert drafter.draft(place) == SimulatedDrafter(request, rates).draft(place)
            if len(rest) < 2:
                assert drafter.draft(place)[1] != EOS


@pytest.mark.parametrize(("rates", "taus"), [((1.0, 1.0), (3, 3)), ((0.0, 1.0), (1, 1)), ((1.0, 0.0), (2, 2))])
def test_where_nothing_repeats_lookup_changes_nothing(rates, taus):
    alone = replay(FRESH, Setup("engine", "fixed", 2, engine_rates=rates), vocab_size=1000)
    both = replay(FRESH, Setup("ngram", "fixed", 6, engine_rates=rates), vocab_size=1000)
    assert (alone.counts.tau, both.counts.tau) == pytest.approx(taus, rel=0.02)
    assert alone.counts.histogram.keys() <= {(2, count, emitted) for count in range(3) for emitted in range(4)}
    assert (alone.faults, both.faults) == ({}, {})


@pytest.mark.parametrize("batch", [1, 16])
def test_where_everything_repeats_lookup_continues_the_drafter(batch):
    text = [*range(1, 40)] * 4
    rates, items = (0.9, 0.9), [item(text, text, f"copy-{k}") for k in range(2)]
    alone, lookup, both = (
        replay(
            items, Setup(name, "batch", gamma, {"batch": {"saturation": 64}}, engine_rates=given), batch=batch
        ).counts
        for name, gamma, given in (("engine", 2, rates), ("ngram", 8, ()), ("ngram", 8, rates))
    )
    assert alone.tau < 2.8
    assert both.tau > 1.2 * alone.tau
    assert both.tau >= 0.95 * lookup.tau
    assert max(verified for verified, *_ in both.histogram) <= 8


def test_setups_are_told_apart():
    rates = (0.5,)
    setups = (
        Setup("engine", "fixed", engine_rates=rates),
        Setup("ngram", "fixed", engine_rates=rates),
        Setup("ngram", "fixed"),
    )
    assert [each.label for each in setups] == ["engine (fixed)", "engine + ngram (fixed)", "ngram (fixed)"]


@given(ITEMS)
@settings(max_examples=10, deadline=None)
def test_a_policy_that_never_drafts_leaves_the_drafter_out(items):
    for setup in (Setup("engine", "none", 1, engine_rates=(1.0,)), Setup("ngram", "none", 4, engine_rates=(1.0,))):
        assert replay(items, setup).counts.verified == 0
