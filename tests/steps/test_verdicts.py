"""Trimming, the verdicts of trimmed drafts, and their traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specplug.interfaces import Trimmer
from specplug.trace import TraceWriter, read_trace
from tests.steps.tools import VOCAB, Recorder, drafts, planted, rig_of, rows, started
from tests.steps.trim_tools import each_costs

TENSORS = ("token_ids", "lengths", "confidence", "source", "base_len")


class Trimming(Trimmer):
    """Trims by a function, by default not at all, and records what it receives; `observe` raises while `fails`."""

    def __init__(self, trim=lambda draft: draft) -> None:
        self._trim, self.fails = trim, False
        self.budgets, self.reported = [], []

    def trim(self, draft, limits):
        self.budgets.append(int(limits.token_budget))
        return self._trim(draft)

    def observe(self, batch, draft, verdict):
        if self.fails:
            raise ZeroDivisionError("planted")
        names = [[draft.sources[source] for source in row if source >= 0] for row in draft.source.tolist()]
        self.reported.append((drafts(draft), names, verdict.accepted.tolist()))


class TestTrim:
    def two(self, **kwargs):
        rig = started(rig_of(Recorder(), **kwargs), a=[1], b=[10])
        return rig

    @pytest.mark.parametrize(
        ("limits", "budgets"),
        [({}, []), ({"budget": 8}, []), ({"budget": -5}, [0]), ({"costs": each_costs(0.1)}, [8])],
    )
    def test_a_policy_is_asked_only_if_a_limit_binds_and_never_to_spend_less_than_nothing(self, limits, budgets):
        trimmer = Trimming()
        assert sum(map(len, drafts(self.two(trimmer=trimmer).draft(**limits)))) == 8
        assert trimmer.budgets == budgets

    @pytest.mark.parametrize(
        "trim",
        [
            planted,
            lambda draft: None,
            lambda draft: draft.view(1, 4),
            lambda draft: draft.view(2, 3),
            lambda draft: replace(draft, lengths=draft.lengths.long()),
            lambda draft: draft.token_ids.resize_(1, 1) and planted(draft),
            lambda draft: replace(draft, confidence=draft.confidence.to("meta")),
            lambda draft: replace(draft, **{name: getattr(draft, name).to("meta") for name in TENSORS}),
            lambda draft: replace(draft, lengths=draft.lengths[:1].expand(2)),  # takes no writes in place
        ],
    )
    def test_a_broken_trimmer_costs_the_drafts(self, trim):
        rig = self.two(trimmer=Trimming(trim))
        draft = rig.draft(budget=3)
        assert drafts(draft) == [[], []]
        assert draft.token_ids.tolist() == [[-1] * 4] * 2
        assert sum(rig.faults["trimmer"].values()) == 1
        assert rig.verify({"a": 0, "b": 0}).proposed.tolist() == [0, 0]

    def test_it_can_add_nothing(self):
        def longer(draft):
            ids, confidence = draft.token_ids.clamp(min=0), draft.confidence + 9
            return replace(draft, lengths=draft.lengths + 1, token_ids=ids, confidence=confidence)

        rig = started(rig_of(Recorder(rows([1, 2], [VOCAB - 1])), trimmer=Trimming(longer)), a=[1], b=[1])
        draft = rig.draft(budget=7)
        assert drafts(draft) == [[1, 2], [VOCAB - 1]]
        assert float(draft.confidence.max()) == 1.0

    def test_it_is_reported_of_what_it_let_through(self):
        trimmer = Trimming()
        rig = started(rig_of(Recorder(rows([1, 2, 3], [4])), trimmer=trimmer), a=[0], b=[9])
        rig.draft()
        rig.verify({"b": 0, "a": 2})
        assert trimmer.reported == [([[4], [1, 2, 3]], [["only"], ["only"] * 3], [0, 2])]

    def test_what_it_raises_of_a_report_is_contained_and_it_is_left_alone_while_off(self):
        trimmer = Trimming()
        trimmer.fails = True
        rig = started(rig_of(Recorder(), trimmer=trimmer, max_consecutive=2), a=[0])
        for _ in range(4):
            rig.draft()
            rig.verify({"a": 0})
        assert rig.faults == {"trimmer": {"raised": 2, "switched off": 1}}


class TestTrace:
    def test_rows_are_written(self, tmp_path):
        path = tmp_path / "trace.jsonl"
        rig = started(rig_of(Recorder(), trace=TraceWriter(path)), a=[1, 2], b=[10])
        for _ in range(2):
            rig.draft(2)
            rig.verify({"b": 2, "a": 0}, verified=2)
        rig.stage.close()
        found = [(row.step, row.request, row.base_len, row.ids, row.accepted, row.reason) for row in read_trace(path)]
        assert found == [
            (0, "b", 1, (11, 12), 2, "accepted"),
            (0, "a", 2, (3, 4), 0, "rejected"),
            (1, "b", 4, (1, 2), 2, "accepted"),
            (1, "a", 3, (1, 2), 0, "rejected"),
        ]

    def test_a_trace_that_cannot_be_written_does_not_end_the_engine(self, tmp_path):
        writer = TraceWriter(tmp_path / "trace.jsonl")
        rig = started(rig_of(Recorder(), trace=writer), a=[1])
        writer.write = planted
        rig.draft()
        assert rig.verify({"a": 3}).accepted.tolist() == [3]
        rig.stage.close()
        assert rig.faults == {"trace": {"raised": 2}}, "at the step, and at the end"
