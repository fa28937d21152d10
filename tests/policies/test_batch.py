"""The policy `batch`: draft lengths that can pay, and the draft tokens that do, held to a plain reference."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.settings import load_settings
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.draft import Draft
from specplug.types.paths import ROOT
from specplug.types.plan import HostStats, RequestStats
from specplug.types.trim import TrimLimits
from specplug_batch import plugin
from specplug_batch.options import BatchOptions
from specplug_batch.reference import best_count
from specplug_batch.roofline import Roofline
from specplug_batch.trim import TRUST, GainTrimmer
from specplug_fixed.options import FixedOptions
from tests.pipeline.test_no_sync import Watch
from tests.pipeline.tools import Recorder, drafts, rig_of, rows

PADDED = EngineCaps(64, ragged=Ragged.PADDED)
PLENTY = 1 << 20


def spec() -> PolicySpec:
    registry = Registry()
    registry.add(plugin, Owner("batch", "specplug", "test"))
    return registry.get(PolicySpec, "batch")


def context(caps: EngineCaps, options: dict[str, object]) -> PluginContext:
    return PluginContext(caps, options=spec().options_model()(**options))  # type: ignore[misc]


def plan(count: int, caps: EngineCaps | None = None, **options: object):
    planner = spec().build(context(caps or EngineCaps(64), options))
    assert isinstance(planner, Planner)
    requests = tuple(RequestStats(f"r{i}", length=10, room=100) for i in range(count))
    return planner.plan(HostStats(step=0, requests=requests))


def trimmer(caps: EngineCaps | None = None, **options: object) -> GainTrimmer:
    built = spec().build_trimmer(context(caps or EngineCaps(64), options))
    assert isinstance(built, GainTrimmer)
    return built


class TestPlans:
    def test_without_free_tokens_an_engine_that_verifies_its_budget_drafts_nothing(self):
        caps = EngineCaps(64, verifies_budget=True)
        assert plan(255, caps).draft_length > 0
        assert plan(256, caps).draft_length == 0

    @pytest.mark.parametrize(
        ("batch_size", "draft_length"),
        [(0, 32), (1, 32), (8, 32), (9, 16), (128, 16), (250, 16), (256, 9), (300, 6), (512, 0)],
    )
    def test_the_draft_length_follows_the_batch_size(self, batch_size, draft_length):
        assert plan(batch_size).draft_length == draft_length

    @pytest.mark.parametrize(
        ("batch_size", "draft_length"), [(1, 32), (8, 31), (9, 16), (64, 3), (100, 1), (129, 0), (999, 0)]
    )
    def test_where_rows_are_padded_only_free_tokens_are_drafted(self, batch_size, draft_length):
        assert plan(batch_size, PADDED, gamma_small=32).draft_length == draft_length

    @pytest.mark.parametrize(("batch_size", "budget"), [(1, 255), (64, 192), (256, 0), (300, 0)])
    def test_where_only_the_budget_bounds_the_step_it_is_what_stays_free(self, batch_size, budget):
        cut = EngineCaps(8, ragged=Ragged.NATIVE, verifies_budget=True)
        assert plan(batch_size, cut).token_budget == budget
        assert plan(batch_size, cut, saturation=300).token_budget == 300 - min(batch_size, 300)
        assert plan(batch_size, cut, token_budget=500).token_budget == 500
        assert plan(batch_size, EngineCaps(8)).token_budget is None

    def test_it_is_fitted_to_what_the_engine_runs(self):
        ladder = EngineCaps(24, captured_draft_lengths=(0, 4, 12, 24), draft_length_change=DraftLengthChange.CAPTURED)
        assert [plan(n, ladder).draft_length for n in (1, 9, 256)] == [24, 12, 4]
        assert plan(1, EngineCaps(5)).draft_length == 5

    def test_options(self):
        assert plan(3, small_batch=2, gamma_small=9, gamma_large=7).draft_length == 7
        assert plan(2, small_batch=2, gamma_small=9, gamma_large=7).draft_length == 9
        assert plan(1, batch_size=512).draft_length == 0
        assert plan(300, saturation=1000).draft_length == 16
        assert (plan(1).token_budget, plan(1, token_budget=5).token_budget) == (None, 5)

    @given(st.integers(1, 2000), st.integers(1, 600))
    @settings(max_examples=50, deadline=None)
    def test_no_draft_length_is_planned_whose_last_token_cannot_pay(self, batch_size, saturation):
        """A row's surest token of that place is free, or brings more than plain decoding does in its time."""
        draft_length = plan(batch_size, saturation=saturation).draft_length
        roofline = Roofline(saturation, 0.02)
        free = batch_size + draft_length <= saturation
        assert not draft_length or free or 0.999**draft_length > roofline.plain_rate(batch_size) / saturation

    @pytest.mark.parametrize("wrong", [{"gamma_small": -1}, {"saturation": 0}, {"margin": -0.1}, {"gama": 3}])
    def test_options_are_checked(self, wrong):
        with pytest.raises(ValidationError, match="|".join(wrong)):
            BatchOptions(**wrong)


# -- which tokens are admitted ---------------------------------------------------------------------------------------

levels = st.floats(0.0, 1.0, width=32)


@st.composite
def forests(draw: st.DrawFn, *, trees: bool) -> list[list[tuple[float, int]]]:
    """Rows of (confidence, parent)."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))

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


@pytest.mark.parametrize("trees", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_admitted_gains_most_of_all_that_could_be(trees, data):
    """Against every set of tokens, and against the plain reference."""
    forest = data.draw(forests(trees=trees).filter(lambda forest: sum(map(len, forest)) <= 8))
    options = {
        "saturation": data.draw(st.integers(1, 10)),
        "overhead": data.draw(st.sampled_from([0.0, 0.02, 0.5])),
        "batch_size": data.draw(st.none() | st.integers(1, 9)),
        "margin": 0.0,
    }
    speed_up = data.draw(st.floats(0.5, 3.0))
    decoding = data.draw(st.lists(st.booleans(), min_size=len(forest), max_size=len(forest)).filter(any))
    forest = [nodes if decodes else [] for nodes, decodes in zip(forest, decoding, strict=True)]

    policy, draft = trimmer(**options), draft_of(forest, trees=trees)
    policy._sums[:, 0], policy._sums[:, 1] = speed_up * TRUST, TRUST
    survival = draft.survival().tolist()
    trimmed = policy.trim(draft, TrimLimits.build(PLENTY, torch.tensor(decoding)))
    trimmed.validate()
    count = int(trimmed.lengths.sum())

    running, roofline = sum(decoding), Roofline(options["saturation"], options["overhead"])
    weight = (options["batch_size"] or running) / running
    rate = roofline.plain_rate(running * weight) * max(1.0, speed_up)

    def gain(tokens: float, number: int) -> float:
        return (running + tokens) * weight - rate * roofline.cost((running + number) * weight)

    kept = [(r, token - 10 * r) for r, row in enumerate(drafts(trimmed)) for token in row]
    assert kept in closed_sets(forest)
    found = gain(sum(survival[r][c] for r, c in kept), count)
    assert found >= max(gain(sum(survival[r][c] for r, c in one), len(one)) for one in closed_sets(forest)) - 1e-4
    in_order = sorted((survival[r][c] for r, nodes in enumerate(forest) for c in range(len(nodes))), reverse=True)
    expected = best_count(in_order, running, weight, rate, roofline)
    assert found == pytest.approx(gain(sum(in_order[:expected]), expected), abs=1e-4)
    assert trimmed.parents is None or closed_after_moving(trimmed)


def closed_after_moving(draft: Draft) -> bool:
    assert draft.parents is not None
    parents = [row[:n] for row, n in zip(draft.parents.tolist(), draft.lengths.tolist(), strict=True)]
    return all(ROOT <= parent < node for row in parents for node, parent in enumerate(row))


def chains(*confidences: list[float]) -> Draft:
    draft_length = max(map(len, confidences))
    return draft_of(
        [[(x, c - 1) for c, x in enumerate(row)] for row in confidences], trees=False, draft_length=draft_length
    )


def kept(
    policy: GainTrimmer,
    draft: Draft,
    budget: int = PLENTY,
    decoding: list[bool] | None = None,
    price: float = 0.0,
) -> list[int]:
    mask = torch.ones(draft.batch_size, dtype=torch.bool) if decoding is None else torch.tensor(decoding)
    return policy.trim(draft, TrimLimits.build(budget, mask, price)).lengths.tolist()


def test_up_to_saturation_whatever_may_be_accepted_is_admitted():
    assert kept(trimmer(saturation=8), chains([0.01, 0.5, 0.5], [1.0, 0.0, 1.0])) == [3, 1]


def test_above_saturation_only_what_beats_plain_decoding_is():
    assert kept(trimmer(saturation=2), chains([0.9], [0.999])) == [0, 1]
    assert kept(trimmer(saturation=2, margin=0.1), chains([0.9], [0.999])) == [0, 0]


def test_the_likeliest_tokens_take_what_is_free():
    assert kept(trimmer(saturation=5), chains([0.9, 0.2], [0.8, 0.5], [0.1, 0.1])) == [1, 1, 0]


def test_rows_that_do_not_decode_take_no_place():
    assert kept(trimmer(saturation=3), chains([0.5, 0.5], []), decoding=[True, True]) == [1, 0]
    assert kept(trimmer(saturation=3), chains([0.5, 0.5], []), decoding=[True, False]) == [2, 0]


def test_a_budget_binds_too():
    assert kept(trimmer(), chains([0.9, 0.9], [0.8, 0.9]), budget=3) == [2, 1]


def test_where_rows_are_padded_only_a_budget_cuts():
    policy = trimmer(PADDED, saturation=2)
    assert not policy.cuts_without_budget(999, 64)
    assert kept(policy, chains([0.5, 0.1], [0.4, 0.9])) == [2, 2]
    assert kept(policy, chains([0.5, 0.1], [0.4, 0.9]), budget=2) == [1, 1]


@pytest.mark.parametrize(
    ("batch_size", "draft_length", "cuts"), [(7, 32, False), (8, 31, False), (8, 32, True), (256, 1, True)]
)
def test_a_step_that_is_free_throughout_is_left_alone(batch_size, draft_length, cuts):
    assert trimmer().cuts_without_budget(batch_size, draft_length) is cuts


def test_being_reported_a_batch_size_is_the_same_as_having_it():
    row = [0.95, 0.9, 0.8, 0.7]
    for reported in (1, 16, 64, 100, 128):
        many = trimmer(saturation=256)
        for _ in range(3):
            lengths = kept(many, chains(*[row] * reported))
        one = trimmer(saturation=256, batch_size=reported)
        for _ in range(3):
            one._sums[:] = many._sums[reported.bit_length() - 1]
            assert kept(one, chains(row))[0] in (min(lengths), max(lengths))


# -- in the pipeline -------------------------------------------------------------------------------------------------


class TestInThePipeline:
    def rig(self, **options):
        made = rig_of(Recorder(rows([1, 2, 3, 4], [5, 6, 7, 8])), trimmer=trimmer(**options))
        made.start("a", [1])
        made.start("b", [2])
        return made

    def test_it_trims_without_a_budget(self):
        assert drafts(self.rig(saturation=6).draft()) == [[1, 2], [5, 6]]

    def test_it_leaves_alone_what_is_free(self):
        rig = self.rig(saturation=10)
        assert drafts(rig.draft()) == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert rig.stage._trimmer._sums.tolist() == [[TRUST, TRUST]] * 16

    def test_padding_rows_do_not_count(self):
        rig = self.rig(saturation=4)
        assert drafts(rig.draft(sampled=[True, False])) == [[1, 2, 3], []]

    def test_a_trimmer_that_fails_to_say_costs_the_drafts(self):
        rig = self.rig()
        rig.stage._trimmer._options = None
        assert drafts(rig.draft()) == [[], []]
        assert rig.faults == {"trimmer": {"raised": 2}}

    @pytest.mark.parametrize("trees", [False, True])
    def test_nothing_is_read_back(self, trees):
        draft = Draft.allocate(3, 4, trees=trees)
        policy, limits = trimmer(saturation=4), TrimLimits.build(99, torch.ones(3, dtype=torch.bool), 0.1)
        with torch.inference_mode(), Watch() as watch:
            policy.trim(draft, limits)
        assert watch.found == []
        assert watch.count > 20

    @pytest.mark.parametrize("trees", [False, True])
    @pytest.mark.parametrize("reported", [None, 64])
    def test_it_runs_where_tensors_have_no_values(self, trees, reported):
        meta = torch.device("meta")
        policy = GainTrimmer(PluginContext(EngineCaps(8), options=BatchOptions(batch_size=reported), device=meta))
        draft = Draft.allocate(3, 4, trees=trees, device=meta)
        trimmed = policy.trim(draft, TrimLimits.build(2, torch.ones(3, dtype=torch.bool, device=meta)))
        trimmed.validate()
        assert trimmed.device == meta

    @pytest.mark.parametrize(("batch_size", "draft_length"), [(0, 4), (3, 0)])
    def test_nothing_to_trim(self, batch_size, draft_length):
        limits = TrimLimits.build(2, torch.ones(batch_size, dtype=torch.bool))
        trimmed = trimmer().trim(Draft.allocate(batch_size, draft_length), limits)
        assert (trimmed.batch_size, trimmed.draft_length) == (batch_size, draft_length)


DOCS = Path(__file__).parents[2] / "docs" / "policies.md"


@pytest.mark.parametrize("policy", ["batch", "fixed"])
def test_every_option_is_documented_with_its_default_and_no_other(policy):
    section = DOCS.read_text(encoding="utf-8").split(f"\n## `{policy}`")[1].split("\n## ")[0]
    found = {name: json.loads(default) for name, default in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.M)}
    model = BatchOptions if policy == "batch" else FixedOptions
    assert found == model().model_dump()


def test_the_example_settings_are_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    resolved = load_settings(tomllib.loads(text), env={})
    assert resolved.settings.policy == "batch"
    BatchOptions(**resolved.settings.options["batch"])
