"""StepCosts: any curve that was timed is reproduced, extended and corrected; nothing of it depends on a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.cost import StepCosts
from specplug.types.step import StepCost


def flat(tokens: float) -> float:
    """Return the cost of a step that is bound by memory up to 256 tokens."""
    return max(1.0, tokens / 256)


def timed(seconds: dict[int, float], requests: int = 1) -> list[StepCost]:
    """Return timed steps of one batch size, by their tokens."""
    return [StepCost(requests, size, 0, size - requests, each) for size, each in seconds.items()]


def predicted(costs: StepCosts, sizes: list[int], requests: int = 1) -> list[float]:
    found: list[float] = costs.seconds(requests, 0.0, sizes, [size - requests for size in sizes]).tolist()
    return found


CURVES = {
    "rises": {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0},
    "falls after a jump": {1: 1.0, 2: 1.8, 3: 2.3, 4: 1.6, 8: 1.9, 16: 2.6},
    "is flat": {1: 5.0, 8: 5.0, 64: 5.0},
    "jumps at the end of a graph": {1: 1.0, 64: 1.0, 65: 3.0, 128: 3.0},
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_any_timed_curve_is_reproduced(curve):
    costs = StepCosts(flat)
    assert costs.basis == "assumed"
    costs.calibrate(timed(curve))
    assert costs.basis == "measured at start"
    assert predicted(costs, list(curve)) == pytest.approx(list(curve.values()), rel=0.02)


@given(st.dictionaries(st.integers(1, 200), st.floats(0.001, 10.0), min_size=2, max_size=12))
def test_random_curves_are_reproduced(curve):
    costs = StepCosts(flat)
    costs.calibrate(timed(dict(sorted(curve.items()))))
    assert predicted(costs, sorted(curve)) == pytest.approx([curve[size] for size in sorted(curve)], rel=0.25)
    assert costs.sizes == sorted(curve)


def test_sizes_between_and_beyond_the_timed_ones_follow_from_them():
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 1.0, 8: 1.0, 16: 2.0}))
    between, beyond = predicted(costs, [12, 32])
    assert between == pytest.approx(1.5, rel=0.02)
    assert beyond == pytest.approx(4.0, rel=0.02), "the slope of 8 to 16 goes on"


def test_steps_in_which_nothing_was_drafted_do_not_tell_what_drafting_costs():
    # Milliseconds of vLLM's V1 on a CPU: with one request draft tokens cost time, with eight they seem not to.
    alone = {1: 76, 2: 83, 3: 86, 4: 88, 8: 98, 16: 112}
    eight = {8: 116, 16: 115}
    costs = StepCosts(flat)
    timed_ms = [(1, *each) for each in alone.items()] + [(8, *each) for each in eight.items()]
    costs.calibrate([StepCost(requests, tokens, 256 * requests, 0, ms / 1e3) for requests, tokens, ms in timed_ms])
    plain, drafts_alone, most = costs.seconds(1, 256, [1, 1, 16], [0, 15, 15])
    assert drafts_alone == plain
    assert most == pytest.approx(0.112, rel=0.05)


def test_requests_context_and_draft_passes_have_terms_of_their_own():
    def seconds(requests: int, tokens: int, context: int, length: int) -> float:
        return 0.01 + tokens * 1e-4 + requests * 2e-4 + context * 1e-7 + length * 3e-3

    steps = [
        StepCost(
            requests,
            requests * (1 + length),
            context,
            length,
            seconds(requests, requests * (1 + length), context, length),
        )
        for requests in (1, 2, 4, 8, 16)
        for length in (0, 1, 3, 7)
        for context in (0, 65536)
    ]
    costs = StepCosts(flat)
    costs.calibrate(steps)
    found = costs.seconds(12, 30000.0, [12, 48], [0, 3])
    assert found == pytest.approx([seconds(12, 12, 30000, 0), seconds(12, 48, 30000, 3)], rel=0.08)


def test_too_few_or_impossible_times_leave_the_assumed_costs():
    for steps in ([], timed({4: 1.0}), timed({1: 0.0, 4: float("inf"), 8: 1.0})):
        costs = StepCosts(flat)
        costs.calibrate(steps)
        assert costs.basis == "assumed"
        assert predicted(costs, [1, 256, 512])[2] == pytest.approx(2 * predicted(costs, [256])[0], rel=0.05)


def observe(costs: StepCosts, steps: list[StepCost], times: int = 60) -> None:
    for _ in range(times):
        costs.observe(steps)


def test_service_corrects_the_sizes_that_are_run_and_through_them_the_others():
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 1.0, 2: 1.0, 4: 1.0, 16: 1.0}))
    observe(costs, [StepCost(1, 2, 0, 15, 2.0), StepCost(1, 4, 0, 15, 3.0)])
    two, four, sixteen = predicted(costs, [2, 4, 16])
    assert two == pytest.approx(2.0, rel=0.15)
    assert four == pytest.approx(3.0, rel=0.15)
    assert sixteen == pytest.approx(3.0, rel=0.15), "like the nearest size that was run"


def test_a_few_long_steps_change_nothing():
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 1.0, 4: 1.0, 16: 1.0}))
    observe(costs, [StepCost(1, 4, 0, 15, 1.0)])
    observe(costs, [StepCost(1, 4, 0, 15, 50.0)], times=5)
    assert predicted(costs, [4]) == pytest.approx([1.0], rel=0.02)


def test_times_at_start_that_service_contradicts_are_fitted_anew():
    """A machine that was busy at start: one size seems to take a hundred times as long, and service shows that not."""
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 0.1, 2: 8.0, 4: 0.1}))
    observe(costs, [StepCost(1, 2, 0, 15, 0.06)], times=12)
    assert costs.basis == "measured in service"
    assert costs.is_timed, "nothing is tried out"
    assert predicted(costs, [2]) == pytest.approx([0.06], rel=0.3)
    observe(costs, [StepCost(1, 2, 0, 15, 0.06), StepCost(1, 1, 0, 15, 0.05), StepCost(1, 4, 0, 15, 0.07)])
    assert predicted(costs, [1, 2, 4]) == pytest.approx([0.05, 0.06, 0.07], rel=0.2)


def test_costs_follow_a_machine_that_is_slower_for_a_while():
    speeds = (1.0, 2.0, 1.0, 4.0, 8.0, 1.0)
    curve = {8: 1.0, 16: 1.07, 24: 1.15, 32: 1.22, 64: 1.5, 128: 2.1}
    costs = StepCosts(flat)
    costs.calibrate(timed(curve, requests=8))
    for speed in speeds:
        steps = [StepCost(8, size, 0, size - 8, speed * curve[size]) for size in (8, 16, 24, 32)]
        observe(costs, steps)
        expected = [speed * each for each in curve.values()]
        assert predicted(costs, list(curve), requests=8) == pytest.approx(expected, rel=0.05)


def test_without_timed_steps_service_measures():
    costs = StepCosts(flat)
    observe(costs, [StepCost(1, 1, 0, 0, 0.02), StepCost(1, 16, 0, 15, 0.06)])
    assert costs.basis == "measured in service"
    one, sixteen = predicted(costs, [1, 16])
    assert sixteen / one == pytest.approx(3.0, rel=0.25)


def test_costs_measured_at_start_are_not_corrected_by_steps_before_them():
    costs = StepCosts(flat)
    observe(costs, [StepCost(1, 1, 0, 0, 1e-3)])
    costs.calibrate(timed({1: 1e-3, 8: 2e-3}))
    assert predicted(costs, [1, 8]) == pytest.approx([1e-3, 2e-3], rel=0.05)


def test_one_slow_step_of_a_size_that_is_hardly_run_corrects_nothing():
    """Otherwise plain steps would seem dear, none would be planned, and nothing would show that they are not."""
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 1e-3, 8: 2e-3}))
    observe(costs, [StepCost(1, 8, 0, 7, 2e-3)])
    costs.observe([StepCost(1, 1, 0, 0, 1.0)])
    assert predicted(costs, [1, 8]) == pytest.approx([1e-3, 2e-3], rel=0.05)


def test_what_is_kept_of_sizes_in_service_is_bounded():
    costs = StepCosts(flat)
    for tokens in range(1, 400):
        costs.observe([StepCost(1, tokens, 0, 0, 0.01)])
    assert len(costs._first_steps) <= 64


def test_steps_that_draft_and_verify_nothing_are_known_once_they_were_run():
    costs = StepCosts(flat)
    assert not costs.knows(drafts=True)
    observe(costs, [StepCost(2, 2, 0, 15, 1.3), StepCost(2, 2, 0, 0, 1.0)])
    assert costs.knows(drafts=True)
    assert costs.knows(drafts=False)
    plain, drafting = costs.seconds(2, 0.0, [2, 2], [0, 15])
    assert drafting / plain == pytest.approx(1.3, rel=0.1)


def test_steps_beside_prompts_count_where_every_step_has_some():
    costs = StepCosts(lambda tokens: tokens)
    costs.calibrate([StepCost(4, tokens, 0, 0, 0.01) for tokens in (4, 8, 16)])
    for _ in range(40):  # their prompts take ten times what the sizes at start let expect
        costs.observe([StepCost(5, 5 + 500, 0, 0, 0.1, prompt_tokens=500)])
    assert costs.knows(drafts=False)
    assert costs.basis == "measured at start", "what decoding costs is not fitted to them"


def test_prompts_raise_the_cost_of_draft_tokens_and_are_not_part_of_it():
    costs = StepCosts(flat)
    costs.calibrate(timed({1: 1.0, 8: 1.0, 64: 1.0, 128: 2.0, 512: 8.0}))
    alone = costs.seconds_beside_prompts(1, 0.0, [1, 16], [0, 15])
    assert alone[1] - alone[0] == pytest.approx(0.0, abs=0.02)
    observe(costs, [StepCost(1, 201, 0, 15, float(costs.seconds(1, 0.0, [201], [15])[0]), prompt_tokens=200)])
    beside = costs.seconds_beside_prompts(1, 0.0, [1, 16], [0, 15])
    assert beside[0] == pytest.approx(alone[0], rel=0.05)
    assert beside[1] - beside[0] == pytest.approx(15 * 6 / 384, rel=0.1)
