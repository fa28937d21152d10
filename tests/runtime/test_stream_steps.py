"""Steps in a stream are those of the draft stage, also when they run late, and wait only for a trim half in Python."""

from __future__ import annotations

from random import Random

import numba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import carray

from specplug.match.cpu.intrinsics import float32_at, struct_at, uint8_at
from specplug.pipeline.stream import host_kernels
from specplug.runtime.stream_steps import AT_START
from specplug.trim import SurvivalTrimmer
from specplug.types.host_step import FAILED, OK, HostStep, TrimArguments
from specplug.types.paths import ROOT
from specplug.types.plan import StepPlan
from tests.pipeline.fake_stream import FakeStream
from tests.runtime.oracle import Engine, compare, lookup_stage

_arguments_at = struct_at(TrimArguments)


class Counted(FakeStream):
    """Counts marks: a step takes one at its end, and another if it waits."""

    marks = 0

    def mark(self):
        self.marks += 1
        return super().mark()


@numba.cfunc("int32(int64)")
def keeps_some(arguments):
    """Keep tokens whose ancestors may be dropped, by bytes other than 1."""
    n = _arguments_at(arguments)
    confidence = carray(float32_at(n.confidence), (n.batch_size, n.draft_stride))
    kept = carray(uint8_at(n.kept), (n.batch_size, n.draft_length))
    for row in range(n.batch_size):
        for place in range(n.draft_length):
            kept[row, place] = 255 if int(confidence[row, place] * 64) % 3 else 0
    return OK


class KeepsSome(SurvivalTrimmer):
    """A trim half whose mask makes no sense: a token stays if its ancestors do, and drafts only get shorter."""

    def host_trim(self):
        return HostStep(keeps_some.address, 0)

    def trim(self, draft, limits):
        mask = (draft.confidence * 64).int() % 3 != 0
        for row, count in enumerate(draft.lengths.tolist()):
            for place in range(count):  # in order, so that parents come first
                parent = place - 1 if draft.parents is None else int(draft.parents[row, place])
                mask[row, place] &= parent == ROOT or bool(mask[row, parent])
        return draft.keep(mask & draft.mask())


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(1, 14), st.integers(0, 1000), st.booleans(), st.booleans())
def test_steps_at_once_and_late_equal_those_of_the_stage(random, count, seed, trees, keeps_some):
    with Counted(seed) as stream:
        forms, stages = ({}, {"streamed": True}, {"streamed": True, "stream": stream}), []
        for _ in forms:
            stages.append(lookup_stage(trees=trees))
            stages[-1]._trimmer = KeepsSome() if keeps_some else stages[-1]._trimmer
        engines = [Engine(stage, **form) for stage, form in zip(stages, forms, strict=True)]
        assert compare(random, engines, steps=count)[1] == []
        assert stream.marks == AT_START + engines[-1].steps.intake.launched, "no step waited"


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(1, 14), st.integers(0, 1000), st.booleans())
def test_steps_report_what_drafts_of_any_length_are_expected_to_yield(random, count, seed, trees):
    """The stage drafts all tokens, notes their survival, and cuts them to the plan."""
    with FakeStream(seed) as stream:
        forms = {}, {"streamed": True}, {"streamed": True, "stream": stream}
        engines = [Engine(lookup_stage(trees=trees), **form) for form in forms]
        for engine in engines:
            engine.reports_expected = True
        assert compare(random, engines, steps=count)[1] == []
    first, *others = [engine.reports for engine in engines]
    for reports in others:
        assert [report.expected_rows for report in reports] == [rows for rows, _ in first]
        assert [report.expected for report in reports] == [sums for _, sums in first]


class Crossed:
    """Transfers that hand on other drafts than those that were made."""

    pack = staticmethod(host_kernels.pack)

    @staticmethod
    def unpack(buffers, batch_size, draft_length, outputs):
        host_kernels.unpack(buffers, batch_size, draft_length, outputs)
        outputs.ids[0, 0] += 1


def test_a_difference_is_found():
    engines = [Engine(), Engine(streamed=True)]
    engines[1].steps._transfers = Crossed
    engines[1].stage.metrics.record_on_host(1)
    count, wrong = compare(Random(1), engines, steps=14)
    assert wrong == ["counts: differs", *(f"step {number}: ids differ" for number in range(count))]


def repeat(trimmer, plan: StepPlan, steps: int, stream: FakeStream | None = None) -> tuple[list[int], Engine]:
    """Return the number of drafts of each step of a request that repeats itself, and its engine."""
    engine, counts = Engine(), []
    engine.stage._trimmer = trimmer
    engine.stream_with(stream)
    engine.start("r", 0, [1, 2, 3, 1, 2, 3, 1, 2])
    engine.steps.intake.settle()
    for number in range(steps):
        engine.emit("r", [3 if number % 3 == 0 else number % 3])
        drafts = engine.step([("r", 1, 0)], plan)
        engine.steps.settle()
        counts.append(int((drafts.confidence > 0).sum()))
    engine.close()
    return counts, engine


class Python(SurvivalTrimmer):
    """Overrides `trim` alone, so that its C function would be another's."""

    def trim(self, draft, limits):
        return super().trim(draft, limits)


@numba.cfunc("int32(int64)")
def fails(arguments):
    return FAILED


class Fails(SurvivalTrimmer):
    """Its C function fails."""

    def host_trim(self):
        return HostStep(fails.address, 0)


class Lacks(SurvivalTrimmer):
    """Has no C function, which shows when it is built."""

    def host_trim(self):
        raise RuntimeError("planted")


def test_a_trim_half_in_python_is_waited_for():
    with Counted() as stream:
        counts, _ = repeat(Python(), StepPlan(3, 1), 3, stream)
        assert stream.marks == AT_START + 1 + 2 * 3, "the first step is a dummy"
    assert max(counts) == 1


def test_without_the_c_function_the_stage_trims():
    assert max(repeat(Lacks(), StepPlan(3, 1), 4)[0]) == 1


@pytest.mark.parametrize(
    ("budget", "most", "faults"), [(None, 3, []), (1, 0, [{"raised": 3, "switched off": 1}])], ids=["uncut", "cut"]
)
def test_a_failed_cut_drops_the_drafts_and_is_the_trim_halfs_fault(budget, most, faults):
    counts, engine = repeat(Fails(), StepPlan(3, budget), 8)
    assert max(counts) == most
    assert [*engine.stage.metrics.snapshot().faults.values()] == faults
