"""Proposers that raise, interrupt or write nonsense: it costs their drafts only, and is counted."""

from __future__ import annotations

import pytest
import torch

from specplug.types.caps import EngineCaps
from specplug.types.request import EngineEvent
from tests.steps.tools import VOCAB, Recorder, Rig, count_up, draft_nothing, drafts, int32, rig_of, rows, started

TENSORS = ["token_ids", "lengths", "confidence", "source", "base_len"]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["device", "host"])
def proposer(request):
    return Recorder(needs_host=request.param == "host", learns=True)


@pytest.mark.parametrize("method", ["ingest", "propose"])
def test_raising_in_a_step_costs_the_draft_and_is_counted(proposer, method):
    rig = started(rig_of(proposer), a=[1])
    proposer.fails = {method}
    draft = rig.draft()
    assert drafts(draft) == [[]]
    assert draft.token_ids.tolist() == [[-1] * 4]
    assert draft.base_len.tolist() == [1]
    assert rig.verify({"a": 0}, emitted={"a": [2]}).proposed.tolist() == [0]
    proposer.fails = set()
    assert drafts(rig.draft()) == [[3, 4, 5, 6]]
    assert rig.faults == {"only": {"raised": 1}}


@pytest.mark.parametrize("method", ["observe", "on_event"])
def test_raising_elsewhere_is_counted(proposer, method):
    rig = started(rig_of(proposer), a=[1])
    rig.draft()
    proposer.fails = {method}
    verdict = rig.verify({"a": 2})
    rig.stage.on_event(EngineEvent("wake"))
    rig.stage.ingest(rig.batch())  # waits until host proposers have run what is queued
    assert verdict.accepted.tolist() == [2]
    assert rig.faults == {"only": {"raised": 1}}
    assert rig.metrics.snapshot().total.accepted == 2


def test_raising_in_close_is_counted_and_the_others_are_closed():
    bad, good = Recorder(), Recorder()
    bad.fails = {"close"}
    rig = Rig({"bad": bad, "good": good})
    rig.stage.close()
    assert good.calls == ["close"]
    assert rig.faults == {"bad": {"raised": 1}}


def test_while_it_is_off_it_gets_events_and_no_verdicts():
    proposer = Recorder(learns=True)
    rig = started(rig_of(proposer, max_consecutive=1), a=[1])
    proposer.fails = {"propose"}
    rig.draft()
    rig.verify({"a": 0})
    rig.start("b", [2])
    assert proposer.calls == ["on_event", "ingest", "propose", "on_event"]


def two(rig: Rig) -> Rig:
    return started(rig, a=[1], b=[1])


def wrong_lengths(_batch, _limits, draft):
    draft.set_row(0, [1, 2], 0.5)
    draft.lengths.copy_(int32([99, -3]))


# A device proposer's draft cannot be read back, so it is cut on the device, or dropped for its shape.


@pytest.mark.parametrize(
    ("write", "kept"),
    [
        *[(rows(ids, [5, 6]), [kept, [5, 6]]) for ids, kept in [
            ([1, 2, VOCAB, 3], [1, 2]), ([-2, 1], []), ([1, 10**9], [1]), ([1, -(2**31)], [1]), ([0, VOCAB - 1],) * 2,
        ]],
        (wrong_lengths, [[1, 2], []]),
        (lambda batch, _limits, draft: count_up(batch, int32([4, 4]), draft), [[2, 3], [2, 3, 4, 5]]),
    ],
)  # fmt: skip
def test_what_is_out_of_range_cuts_the_row(write, kept):
    rig = two(rig_of(Recorder(write)))
    draft = rig.draft(room=[3, 100])
    assert drafts(draft) == kept
    for row, ids in enumerate(kept):
        assert draft.token_ids[row, len(ids) :].eq(-1).all()
        assert draft.confidence[row, len(ids) :].eq(0).all()
    assert rig.faults == {}


@pytest.mark.parametrize(("level", "kept"), [(INF, 1.0), (-INF, 0.0), (NAN, 0.0)])
def test_confidence_is_forced_into_the_unit_interval_and_rubbish_behind_a_draft_is_cleared(level, kept):
    def write(_batch, _limits, draft):
        draft.token_ids.copy_(int32([1, 2, 3, 10**9]).expand_as(draft.token_ids))
        draft.confidence.fill_(NAN)
        draft.confidence[:, :2] = level
        draft.lengths.fill_(2)
        draft.source.fill_(0)

    draft = two(rig_of(Recorder(write))).draft()
    assert draft.token_ids.tolist() == [[1, 2, -1, -1]] * 2
    assert draft.confidence.tolist() == [[kept, kept, 0.0, 0.0]] * 2


@pytest.mark.parametrize("parents", [[-1, 1], [-1, 5], [-2, 0], [-1, -7]])
def test_parents_behind_their_child_cut_the_row(parents):
    def write(_batch, _limits, draft):
        draft.set_row(0, [1, 2], 0.5)
        draft.parents[0, :2] = int32(parents)

    rig = started(rig_of(Recorder(write, trees=True), caps=EngineCaps(4, trees=True)), a=[1])
    assert len(drafts(rig.draft())[0]) < 2


def test_a_source_that_does_not_exist_is_nobodys():
    def write(batch, limits, draft):
        count_up(batch, limits, draft)
        draft.source.fill_(1)  # the other proposer's, if it went unchecked

    rig = started(Rig({"bad": Recorder(write), "good": Recorder()}), a=[1])
    draft = rig.draft()
    assert draft.lengths.tolist() == [4]
    assert draft.source.tolist() == [[-1] * 4]


def replaced(change):
    return lambda draft, name: object.__setattr__(draft, name, change(getattr(draft, name)))


def resized(*shape):
    return lambda draft, name: getattr(draft, name).resize_(*shape).fill_(1)


CHANGES = {"device": replaced(lambda it: it.to("meta")), "dtype": replaced(torch.Tensor.double)} | {
    f"shape {shape}": resized(*shape) for shape in [(1, 4), (2, 1), (2, 3), (2, 9), (0,)]
}


@pytest.mark.parametrize("names", [*[[name] for name in TENSORS], TENSORS])
@pytest.mark.parametrize("change", CHANGES)
def test_tensors_of_another_shape_device_or_dtype_drop_the_draft(change, names):
    def write(batch, limits, draft):
        count_up(batch, limits, draft)
        for name in names:
            CHANGES[change](draft, name)

    for needs_host, others in ((False, {}), (True, {}), (False, {"good": Recorder(draft_nothing)})):
        rig = two(Rig({"only": Recorder(write, needs_host=needs_host), **others}))
        draft = rig.draft()
        assert draft.token_ids.tolist() == [[-1] * 4] * 2
        assert drafts(draft) == [[], []]
        assert rig.faults == {"only": {"malformed": 1}}
