"""The judge of greedy equality passes near ties, few of them; the G-test has the right level and power."""

import numpy as np
import pytest
import torch
from scipy import stats

from specplug.errors import ContractError
from specplug.testing.equality import MIN_EXPECTED, g_test, g_test_power, judge_greedy, pool

VOCAB, END = 6, 5


def forward(ids):
    """Token t + 1 follows t; after 3 the tokens 0 and 4 nearly tie, after 2 the end and 3 do."""
    logits = torch.zeros(VOCAB)
    logits[(ids[-1] + 1) % VOCAB] = 10.0
    if ids[-1] == 3:
        logits[0] = 10.0 - 5e-5
    if ids[-1] == 2:
        logits[END] = 10.0 + 5e-5
    return logits


def judge(actual, expected=(1, 2, 3, 4), copies=1, identical=0, **options):
    """Judge `copies` requests with that output among `identical` equal ones."""
    count = copies + identical
    outputs = [list(actual)] * copies + [list(expected)] * identical
    return judge_greedy(forward, [[0]] * count, [list(expected)] * count, outputs, **options)


def test_identical_outputs_need_no_forward():
    def never(ids):
        raise AssertionError("called")

    report = judge_greedy(never, [[0], [1]], [[1, 2], []], [(1, 2), []])
    report.assert_ok()
    assert (report.total, report.identical, report.near_ties, report.failures) == (2, 2, (), ())


TIE = [1, 2, 3, 0]
FAR = "request 0, output token 2: expected token 3, found token 0, logit gap 10"


@pytest.mark.parametrize(
    ("actual", "options", "words"),
    [
        pytest.param([1, 2, 0, 4], {}, f"failure: {FAR}", id="a failure"),
        pytest.param([1, 2, 3, 4], {"expected": [1, 2, 0, 4]}, "logit gap 10", id="a likelier token"),
        pytest.param([1, 2, 0, 4], {"identical": 999}, f"failure: {FAR}", id="one failure among many"),
        pytest.param(TIE, {"identical": 99}, "", id="one tie in a hundred"),
        pytest.param(TIE, {"identical": 98}, "1 near ties", id="more than one tie in a hundred"),
        pytest.param(TIE, {"copies": 2, "identical": 198}, "", id="two in two hundred"),
        pytest.param(TIE, {"copies": 2, "identical": 197}, "2 near ties", id="the share is rounded down"),
        pytest.param(TIE, {"allowed_near_ties": 1}, "", id="a number by name"),
        pytest.param(TIE, {"identical": 99, "allowed_near_ties": 0}, "near tie: .* gap 4.96e-05", id="none by name"),
        pytest.param(TIE, {"tolerance": 1e-5, "allowed_near_ties": 1}, "failure: .* gap 4.96e-05", id="a large gap"),
        # After a near tie the contexts differ, so later tokens are not compared.
        pytest.param([*TIE, 4, 4], {"expected": [1, 2, 3, 4, 5], "allowed_near_ties": 1}, "", id="only the first"),
        pytest.param([1, 2], {"expected": [1, 2, 3], "end_ids": [END, 1], "allowed_near_ties": 1}, "", id="an end"),
        pytest.param([1, 2, 3], {"expected": [1, 2], "end_ids": [END, 1], "allowed_near_ties": 1}, "", id="no end"),
        pytest.param(
            [1], {"expected": [1, 2, 3], "end_ids": [END], "allowed_near_ties": 1}, "found the end", id="a far end"
        ),
        pytest.param([1, 2], {"expected": [1, 2, 3]}, "token 2: .* found the end, logit gap inf", id="a prefix"),
        pytest.param([1, 2, 3], {"expected": [1, 2]}, "token 2: expected the end, .* gap inf", id="a longer one"),
    ],
)
def test_what_is_a_near_tie_and_how_many_are_allowed(actual, options, words):
    report = judge(actual, **options)
    assert report.ok is not bool(words)
    assert report.identical == options.get("identical", 0)
    if words:
        with pytest.raises(AssertionError, match=words):
            report.assert_ok()


def test_forward_sees_prompt_and_common_prefix():
    seen = []

    def watch(ids):
        seen.append(list(ids))
        return forward(ids)

    judge_greedy(watch, [[4, 0]], [[1, 2, 3]], [[1, 2, 0]])
    assert seen == [[4, 0, 1, 2]]


def test_forward_may_return_all_positions():
    def whole(ids):
        return torch.stack([forward(ids[: j + 1]) for j in range(len(ids))])[None]

    report = judge_greedy(whole, [[0]], [[1, 2, 3, 4]], [[1, 2, 3, 0]], allowed_near_ties=1)
    assert report.ok


def test_not_a_number_is_no_near_tie():
    report = judge_greedy(lambda ids: torch.full((VOCAB,), torch.nan), [[0]], [[1]], [[2]], allowed_near_ties=1)
    assert len(report.failures) == 1


def test_half_precision_cannot_judge():
    with pytest.raises(ContractError, match=r"bfloat16.*float32"):
        judge_greedy(lambda ids: forward(ids).bfloat16(), [[0]], [[1]], [[2]])


def test_lists_of_different_length_are_refused():
    with pytest.raises(ContractError, match="1 prompts, 1 expected, 0 actual"):
        judge_greedy(forward, [[0]], [[1]], [])


DISTRIBUTION = np.array([0.4, 0.3, 0.2, 0.1])
OTHER = np.array([0.45, 0.3, 0.15, 0.1])


def samples(distribution, size, count, seed=0):
    return np.random.default_rng(seed).multinomial(size, distribution, size=count)


def test_equals_scipy_where_nothing_is_pooled():
    counts = samples(OTHER, 1000, 1)[0]
    expected = stats.power_divergence(counts, DISTRIBUTION * 1000, lambda_="log-likelihood").pvalue
    assert g_test(counts, DISTRIBUTION) == pytest.approx(expected)


def test_p_values_are_uniform_under_the_distribution():
    found = [g_test(counts, DISTRIBUTION) for counts in samples(DISTRIBUTION, 2000, 500)]
    assert stats.kstest(found, "uniform").pvalue > 1e-4


def test_power_is_the_share_of_rejections():
    predicted = g_test_power(500, DISTRIBUTION, OTHER, alpha=0.05)
    found = np.mean([g_test(counts, DISTRIBUTION) < 0.05 for counts in samples(OTHER, 500, 500)])
    assert 0.2 < predicted < 0.95
    assert found == pytest.approx(predicted, abs=0.08)


def test_power_is_the_level_without_a_difference_and_grows_with_the_sample():
    assert g_test_power(1000, DISTRIBUTION, DISTRIBUTION, alpha=0.01) == pytest.approx(0.01, rel=0.01)
    powers = [g_test_power(size, DISTRIBUTION, OTHER, alpha=1e-6) for size in (500, 2000, 8000)]
    assert powers == sorted(powers)
    assert powers[-1] > 0.999


def test_an_impossible_outcome_convicts():
    assert g_test([999, 0, 1], [0.5, 0.5, 0.0]) == 0.0
    assert g_test_power(10, [0.5, 0.5, 0.0], [0.5, 0.4, 0.1], alpha=1e-9) == 1.0


def test_outcomes_of_probability_0_that_never_occur_change_nothing():
    assert g_test([60, 40, 0], [0.5, 0.5, 0.0]) == g_test([60, 40], [0.5, 0.5])


def test_small_cells_are_pooled():
    """Of 100 counts, the two cells that expect 3 each become one that expects 6; 4 and 90 remain, and 4 joins 90."""
    assert MIN_EXPECTED == 5.0
    pooled = g_test([90, 2, 3, 5], [0.9, 0.04, 0.03, 0.03])
    assert pooled == pytest.approx(g_test([92, 8], [0.94, 0.06]))


def test_cells_of_a_whole_vocabulary_are_as_small_as_may_be():
    expected = 1000 * np.random.default_rng(0).dirichlet(np.full(50_000, 0.01))
    cells = pool(expected)
    assert sorted(np.concatenate(cells).tolist()) == np.flatnonzero(expected).tolist()
    assert all(expected[cell].sum() > MIN_EXPECTED - 1e-9 for cell in cells)
    assert all(expected[cell[:-1]].sum() < MIN_EXPECTED + 1e-9 for cell in cells[:-1])
    assert len(cells) > 20


def test_a_single_cell_tests_nothing():
    assert g_test([7], [1.0]) == 1.0
    assert g_test([1, 1], [0.5, 0.5]) == 1.0
    assert g_test_power(2, [0.5, 0.5], [0.9, 0.1], alpha=0.05) == 0.0


@pytest.mark.parametrize(
    ("counts", "probs", "message"),
    [
        ([1, 2], [1.0], "expected two lists of one length"),
        ([0, 0], [0.5, 0.5], "at least one count"),
        ([1, 2], [0.5, 0.4], "not a distribution; found sum 0.9"),
        ([1, 2], [1.5, -0.5], "not a distribution"),
    ],
)
def test_mistakes_are_reported(counts, probs, message):
    with pytest.raises(ContractError, match=message):
        g_test(counts, probs)
