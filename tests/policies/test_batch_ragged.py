"""The policy `batch` where each draft token has a cost of its own: its prices keep the tokens that gain most."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.cost import entry_and_prices
from specplug.interfaces import PluginContext
from specplug.trim import SurvivalTrimmer
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.draft import Draft
from specplug.types.paths import ROOT
from specplug.types.plan import HostStats, StepPlan, StepReport, TrimLimits
from specplug_batch.options import BatchOptions
from specplug_batch.ragged import RaggedPlanner
from tests.pipeline.tools import Recorder, drafts, rig_of, rows

CAPS = EngineCaps(64, ragged=Ragged.NATIVE)
PLENTY = 1 << 20

levels = st.floats(0.0, 1.0, width=32)


@st.composite
def forests(draw: st.DrawFn, *, trees: bool) -> list[list[tuple[float, int]]]:
    """Rows of (confidence, parent), of at most 8 nodes together."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 8))

    def parent(column: int) -> int:
        return draw(st.integers(ROOT, column - 1)) if trees else column - 1

    return [[(draw(levels), parent(column)) for column in range(size)] for size in sizes]


def draft_of(forest: list[list[tuple[float, int]]], *, trees: bool, draft_length: int = 4) -> Draft:
    draft = Draft.allocate(len(forest), draft_length, trees=trees)
    for row, nodes in enumerate(forest):
        parents = [parent for _, parent in nodes] if trees else None
        draft.set_row(row, list(range(10 * row, 10 * row + len(nodes))), [x for x, _ in nodes], parents=parents)
    return draft


def closed_sets(forest: list[list[tuple[float, int]]]) -> list[list[tuple[int, int]]]:
    """Return all sets of (row, column) that hold every node's ancestors."""
    nodes = [(row, column) for row, one in enumerate(forest) for column in range(len(one))]
    sets = itertools.chain.from_iterable(itertools.combinations(nodes, n) for n in range(len(nodes) + 1))

    def is_closed(chosen: tuple[tuple[int, int], ...]) -> bool:
        return all(forest[r][c][1] == ROOT or (r, forest[r][c][1]) in chosen for r, c in chosen)

    return [list(chosen) for chosen in sets if is_closed(chosen)]


def kept_by(plan: StepPlan, draft: Draft) -> Draft:
    decoding = torch.ones(draft.batch_size, dtype=torch.bool)
    limits = TrimLimits.build(plan.budget_of(PLENTY), decoding, plan.prices, plan.entry)
    return SurvivalTrimmer().trim(draft, limits)


def planner(**options: object) -> RaggedPlanner:
    return RaggedPlanner(PluginContext(CAPS, options=BatchOptions(**options)))


def plan_for(built: RaggedPlanner, requests: int, step: int = 0) -> StepPlan:
    return built.plan(HostStats(step, range(requests)))


@pytest.mark.parametrize("trees", [False, True])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_admitted_gains_most_of_all_that_could_be(trees, data):
    """For costs that rise ever faster, from the first token or the second on, against every set of tokens."""
    forest = data.draw(forests(trees=trees))
    rises = sorted(data.draw(st.lists(st.floats(0, 1), min_size=8, max_size=8)))
    first = data.draw(st.sampled_from([0.0, 0.5, 2.0]))  # what any tokens cost beyond that
    seconds = [1.0, *[first + each for each in itertools.accumulate(rises, initial=1.0)][1:]]
    rate = data.draw(st.floats(0.1, 4.0))
    draft = draft_of(forest, trees=trees)
    survival = draft.survival().tolist()
    entry, prices = entry_and_prices(range(9), seconds, rate)
    trimmed = kept_by(StepPlan(4, prices=prices, entry=entry), draft)
    trimmed.validate()

    def gain(chosen: list[tuple[int, int]]) -> float:
        return sum(survival[r][c] for r, c in chosen) - rate * seconds[len(chosen)]

    found = [(r, token - 10 * r) for r, row in enumerate(drafts(trimmed)) for token in row]
    assert found in closed_sets(forest)
    assert gain(found) >= max(map(gain, closed_sets(forest))) - 1e-4


def chains(*confidences: list[float]) -> Draft:
    draft_length = max(map(len, confidences))
    return draft_of(
        [[(x, c - 1) for c, x in enumerate(row)] for row in confidences], trees=False, draft_length=draft_length
    )


def kept(draft: Draft, **options: object) -> list[int]:
    return kept_by(plan_for(planner(**options), draft.batch_size), draft).lengths.tolist()


def test_up_to_saturation_whatever_may_be_accepted_is_admitted():
    assert kept(chains([0.01, 0.5, 0.5], [1.0, 0.0, 1.0]), saturation=8) == [3, 3]


def test_above_saturation_only_what_beats_plain_decoding_is():
    assert kept(chains([0.9], [0.999]), saturation=2) == [0, 1]
    assert kept(chains([0.9], [0.999]), saturation=2, margin=0.1) == [0, 0]


def test_the_likeliest_tokens_take_what_is_free():
    assert kept(chains([0.9, 0.2], [0.8, 0.5], [0.1, 0.1]), saturation=5) == [1, 1, 0]


def test_a_budget_binds_too():
    assert kept(chains([0.9, 0.9], [0.8, 0.9]), token_budget=3) == [2, 1]


@given(data=st.data())
def test_the_speed_up_is_the_running_one(data):
    """Held to plain arithmetic over a few steps, of batch sizes that allow the longest draft."""
    built, roofline = planner(saturation=16), BatchOptions(saturation=16)
    sums, step = {}, 0  # by number of binary digits
    for _ in range(data.draw(st.integers(1, 5))):
        counts = data.draw(st.lists(st.integers(0, 4), max_size=12))
        fates = [(count, data.draw(st.integers(0, count))) for count in counts]
        count, verified = len(fates), sum(verified for verified, _ in fates)
        plan_for(built, max(1, count))
        built.observe(StepReport.build(step, 4, count, fates))
        if count:
            digits, keep = len(f"{count:b}"), 1 - 1 / max(48, 768 / count)
            step += 1
            near = min(sums, key=lambda known: abs(known - digits), default=digits)
            tokens, cost = sums.get(near, (1, 1))
            tokens, cost = (tokens, cost) if digits in sums else (8 * tokens / cost, 8)
            emitted = 1 + sum(accepted for _, accepted in fates) / count
            sums[digits] = tokens * keep + emitted, cost * keep + roofline.cost(count + verified) / roofline.cost(count)
    for digits, (tokens, cost) in sums.items():
        assert built._gains.speed_up(1 << digits - 1) == pytest.approx(tokens / cost)


def long_run(kinds: list[list[float]], batch_size: int, roofline: BatchOptions) -> tuple[float, float]:
    """Return the tokens per cost of equally frequent steps: of the best lengths, and of each step's best ratio."""
    options = [
        [(batch_size * (1 + sum(kind[:n])), roofline.cost(batch_size * (n + 1))) for n in range(len(kind) + 1)]
        for kind in kinds
    ]

    def rate(chosen) -> float:
        return sum(e for e, _ in chosen) / sum(c for _, c in chosen)

    greedy = [max(one, key=lambda step: step[0] / step[1]) for one in options]
    return max(rate(chosen) for chosen in itertools.product(*options)), rate(greedy)


KINDS = [[0.97 ** (j + 1) for j in range(12)], [0.8 ** (j + 1) for j in range(8)], [0.35, 0.1, 0.02]]


@pytest.mark.parametrize("batch_size", [32, 64, 128])
def test_in_the_long_run_it_makes_the_most_tokens_per_cost(batch_size):
    """Drafts that are good, middling and poor, in any order; the best choice for all is found by trying all."""
    roofline = BatchOptions(saturation=256)
    best, greedy = long_run(KINDS, batch_size, roofline)
    built, generator, tokens, cost = planner(margin=0.0), random.Random(1), 0.0, 0.0
    batches = [
        (kind, chains(*[[kind[0], *(b / a for a, b in itertools.pairwise(kind))]] * batch_size)) for kind in KINDS
    ]
    for step, (kind, drafted) in enumerate(batch for _ in range(500) for batch in generator.sample(batches, 3)):
        plan = plan_for(built, batch_size, step)
        counts = kept_by(plan, drafted).lengths.tolist()
        expected = sum(sum(kind[:count]) for count in counts)
        fates = [(count, round(sum(kind[:count]))) for count in counts]
        report = StepReport.build(step, plan.draft_length, batch_size, fates)
        built.observe(report)
        if step >= 900:
            tokens += batch_size + expected
            cost += roofline.cost(batch_size + sum(counts))
    assert tokens / cost > 0.985 * best
    assert tokens / cost >= batch_size / roofline.cost(batch_size)
    assert best >= greedy


def test_the_best_ratio_of_each_step_is_not_the_best_in_the_long_run():
    best, greedy = long_run(KINDS, 64, BatchOptions(saturation=256))
    assert greedy < 0.99 * best


class TestInThePipeline:
    def rig(self):
        made = rig_of(Recorder(rows([1, 2, 3, 4], [5, 6, 7, 8])), trimmer=SurvivalTrimmer())
        made.start("a", [1])
        made.start("b", [2])
        return made

    @pytest.mark.parametrize(("saturation", "lengths"), [(10, [4, 4]), (6, [2, 2])])
    def test_it_trims_without_a_budget(self, saturation, lengths):
        plan = plan_for(planner(saturation=saturation), 2)
        assert [len(row) for row in drafts(self.rig().draft(prices=plan.prices))] == lengths
