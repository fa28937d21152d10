"""Proposers that raise, interrupt or write nonsense: it costs their drafts only, and is counted."""

from __future__ import annotations

import pytest
import torch

from specplug.types.caps import EngineCaps
from specplug.types.request import EngineEvent
from tests.pipeline.tools import VOCAB, Recorder, Rig, count_up, draft_nothing, drafts, int32, rig_of, rows, started

TENSORS = ["token_ids", "lengths", "confidence", "source", "base_len"]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["device", "host"])
def proposer(request):
    return Recorder(needs_host=request.param == "host", learns=True)


def flush(rig: Rig) -> None:
    """Wait until host proposers have run what is queued."""
    rig.stage.ingest(rig.batch())


class TestFaults:
    @pytest.mark.parametrize("method", ["ingest", "propose"])
    def test_raising_in_a_step_costs_the_draft_and_is_counted(self, proposer, method):
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
    def test_raising_elsewhere_is_counted(self, proposer, method):
        rig = started(rig_of(proposer), a=[1])
        rig.draft()
        proposer.fails = {method}
        verdict = rig.verify({"a": 2})
        rig.stage.on_event(EngineEvent("wake"))
        flush(rig)
        assert verdict.accepted.tolist() == [2]
        assert rig.faults == {"only": {"raised": 1}}
        assert rig.metrics.snapshot().total.accepted == 2

    def test_raising_in_close_is_counted_and_the_others_are_closed(self):
        bad, good = Recorder(), Recorder()
        bad.fails = {"close"}
        rig = Rig({"bad": bad, "good": good})
        rig.stage.close()
        assert good.calls == ["close"]
        assert rig.faults == {"bad": {"raised": 1}}

    def test_while_it_is_off_it_gets_events_and_no_verdicts(self):
        proposer = Recorder(learns=True)
        rig = started(rig_of(proposer, max_consecutive=1), a=[1])
        proposer.fails = {"propose"}
        rig.draft()
        rig.verify({"a": 0})
        rig.start("b", [2])
        assert proposer.calls == ["on_event", "ingest", "propose", "on_event"]


def two(proposer) -> Rig:
    """Return a rig in which two requests run."""
    rig = started(proposer if isinstance(proposer, Rig) else rig_of(proposer), a=[1], b=[1])
    return rig


class TestMalformedDrafts:
    """A device proposer's draft cannot be read back, so it is cut on the device, or dropped for its shape."""

    @pytest.mark.parametrize(
        ("ids", "kept"),
        [
            ([1, 2, VOCAB, 3], [1, 2]),
            ([-2, 1], []),
            ([1, 10**9], [1]),
            ([1, -(2**31)], [1]),
            ([0, VOCAB - 1], [0, VOCAB - 1]),
        ],
    )
    def test_ids_out_of_range_cut_the_row(self, ids, kept):
        rig = two(Recorder(rows(ids, [5, 6])))
        assert drafts(rig.draft()) == [kept, [5, 6]]
        assert rig.faults == {}

    def test_lengths_beyond_the_tokens_are_cut(self):
        def write(_batch, _limits, draft):
            draft.set_row(0, [1, 2], 0.5)
            draft.lengths.copy_(int32([99, -3]))

        assert drafts(two(Recorder(write)).draft()) == [[1, 2], []]

    @pytest.mark.parametrize(("level", "kept"), [(INF, 1.0), (-INF, 0.0), (NAN, 0.0)])
    def test_confidence_is_forced_into_the_unit_interval_and_rubbish_behind_a_draft_is_cleared(self, level, kept):
        def write(_batch, _limits, draft):
            draft.token_ids.copy_(int32([1, 2, 3, 10**9]).expand_as(draft.token_ids))
            draft.confidence.fill_(NAN)
            draft.confidence[:, :2] = level
            draft.lengths.fill_(2)
            draft.source.fill_(0)

        draft = two(Recorder(write)).draft()
        assert draft.token_ids.tolist() == [[1, 2, -1, -1]] * 2
        assert draft.confidence.tolist() == [[kept, kept, 0.0, 0.0]] * 2

    @pytest.mark.parametrize("parents", [[-1, 1], [-1, 5], [-2, 0], [-1, -7]])
    def test_parents_behind_their_child_cut_the_row(self, parents):
        def write(_batch, _limits, draft):
            draft.set_row(0, [1, 2], 0.5)
            draft.parents[0, :2] = int32(parents)

        rig = started(rig_of(Recorder(write, trees=True), caps=EngineCaps(4, trees=True)), a=[1])
        assert len(drafts(rig.draft())[0]) < 2

    def test_a_source_that_does_not_exist_is_nobodys(self):
        def write(batch, limits, draft):
            count_up(batch, limits, draft)
            draft.source.fill_(1)  # the other proposer's, if it went unchecked

        rig = started(Rig({"bad": Recorder(write), "good": Recorder()}), a=[1])
        draft = rig.draft()
        assert draft.lengths.tolist() == [4]
        assert draft.source.tolist() == [[-1] * 4]

    @pytest.mark.parametrize("names", [["token_ids"], ["token_ids", "confidence"]])
    @pytest.mark.parametrize("shape", [(1, 4), (2, 1), (2, 3), (2, 9), (0,)])
    def test_resized_tensors_drop_the_draft(self, shape, names):
        def write(_batch, _limits, draft):
            for name in names:
                getattr(draft, name).resize_(*shape).fill_(1)
            draft.lengths.fill_(1)

        bad = Recorder(write)
        for rig in (rig_of(bad), Rig({"only": bad, "good": Recorder(draft_nothing)})):
            draft = two(rig).draft()
            assert draft.token_ids.tolist() == [[-1] * 4] * 2
            assert drafts(draft) == [[], []]
            assert rig.faults == {"only": {"malformed": 1}}

    @pytest.mark.parametrize("change", [lambda it: it.to("meta"), torch.Tensor.double], ids=["device", "dtype"])
    @pytest.mark.parametrize("names", [*[[name] for name in TENSORS], TENSORS])
    @pytest.mark.parametrize("needs_host", [False, True])
    def test_tensors_on_another_device_or_of_another_dtype_drop_the_draft(self, change, names, needs_host):
        def write(batch, limits, draft):
            count_up(batch, limits, draft)
            for name in names:
                object.__setattr__(draft, name, change(getattr(draft, name)))

        rig = started(rig_of(Recorder(write, needs_host=needs_host)), a=[1])
        draft = rig.draft()
        assert draft.token_ids.tolist() == [[-1] * 4]
        assert drafts(draft) == [[]]
        assert rig.faults == {"only": {"malformed": 1}}
