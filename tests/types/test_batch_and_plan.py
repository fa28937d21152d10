"""EngineBatch's own arithmetic, the host types beside it, and copies of several tensors at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError, SettingsError
from specplug.plugins.specs import ProposerSpec
from specplug.testing import batches
from specplug.types.batch import Barrier
from specplug.types.caps import DraftLengthChange, EngineCaps, ProposerCaps
from specplug.types.request import Request
from specplug.types.step import EngineBatch, Outcome, Verdict
from specplug.types.tensors import to_device, to_host

JUNK = 99999


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make_batch(texts: list[list[int]], **columns) -> EngineBatch:
    """Rows 0, 1, ... live in slots B-1, B-2, ...; the table is longer than any text, and its tail is poisoned."""
    size = len(texts)
    given = {
        "slots": range(size)[::-1],
        "generations": range(10, 10 + size),
        "num_new": [1] * size,
        "temperature": range(size),
        "requests": [Request(f"r{row}", 1, 9) for row in range(size)],
        "barriers": [Barrier(row, 0, 1) for row in range(size)],
    }
    return batches.make_batch(texts, table_shape=(size, 12), **given | columns)


def row_of(batch: EngineBatch, row: int) -> dict:
    """Return one row's values, independent of its position."""
    per_row = ("slots", "generations", "lengths", "num_new", "sampled", "room", "temperature", "grammar")
    values = {name: getattr(batch, name)[row].item() for name in per_row}
    values["text"] = batch.tokens[batch.rows[row], : batch.lengths[row]].tolist()
    values["barriers"] = [(b.start, b.stop) for b in batch.barriers if b.row == row]
    return values | {"id": batch.request_ids[row], "request": batch.requests[row]}


class TestViews:
    def test_host_snapshot_is_independent(self):
        batch = make_batch([[1, 2, 3], [4, 5]])
        seen = [row_of(batch, row) for row in (0, 1)]
        snapshot = batch.to_host()
        snapshot.validate()
        for tensor in (batch.tokens, batch.lengths, batch.generations, batch.temperature, batch.slots):
            tensor.fill_(1)
        assert [row_of(snapshot, row) for row in (0, 1)] == seen
        assert snapshot.tokens.shape == (2, 3)  # this batch's rows, no longer than need be

    @given(st.data(), st.booleans())
    @settings(max_examples=50)
    def test_a_snapshot_of_what_is_new_against_the_whole(self, data, again):
        texts = data.draw(st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=12), max_size=4))
        new = [data.draw(st.integers(0, len(text))) for text in texts]
        batch = replace(make_batch(texts), num_new=ints(new))
        window, other = data.draw(st.integers(0, 4)), torch.arange(3.0)
        snapshot, others = batch.to_host_with([other], newest_only=True, window=window)
        assert [it.tolist() for it in others] == [[0.0, 1.0, 2.0]]
        if again:  # and of such a snapshot another one, of what has become new in it
            new = [data.draw(st.integers(0, count)) for count in new]
            snapshot = replace(snapshot, num_new=ints(new)).to_host(newest_only=True)
        snapshot.validate()
        batch.tokens.fill_(JUNK)
        assert snapshot.tokens.shape == (len(texts), max(new, default=0))
        assert snapshot.first.tolist() == [len(text) - count for text, count in zip(texts, new, strict=True)]
        assert snapshot.lengths.tolist() == [len(text) for text in texts]
        for text, count, row in zip(texts, new, snapshot.tokens.tolist(), strict=True):
            assert row[:count] == text[len(text) - count :]
        assert snapshot.to_host().tokens.tolist() == snapshot.tokens.tolist()

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("lengths", torch.zeros(2, dtype=torch.int64)),
            ("generations", torch.zeros(2, dtype=torch.int32)),
            ("sampled", torch.zeros(2, dtype=torch.int32)),
            ("temperature", torch.zeros(2, dtype=torch.float64)),
            ("room", torch.zeros(3, dtype=torch.int32)),
            ("tokens", torch.zeros(2, 4, dtype=torch.int64)),
            ("tokens", torch.zeros(2, dtype=torch.int32)),
            ("first", torch.zeros(2, dtype=torch.int64)),
            ("first", torch.zeros(1, dtype=torch.int32)),
        ],
    )
    def test_validate_names_what_is_malformed(self, name, wrong):
        batch = make_batch([[1], [2]])
        batch.validate()
        with pytest.raises(ContractError, match=rf"EngineBatch\.{name} is malformed; found \(.*; expected "):
            replace(batch, **{name: wrong}).validate()


class TestCaps:
    @given(st.integers(0, 12), st.sets(st.integers(0, 12)), st.sampled_from(DraftLengthChange), st.integers(-3, 20))
    def test_fit_draft_length_is_the_widest_rung_below(self, max_draft_length, rungs, change, draft_length):
        ladder = tuple(sorted(rung for rung in rungs if rung <= max_draft_length))
        caps = EngineCaps(
            max_draft_length=max_draft_length,
            captured_draft_lengths=ladder,
            draft_length_change=change,
        )
        allowed = ladder if ladder and change is not DraftLengthChange.FIXED else range(max_draft_length + 1)
        assert caps.fit_draft_length(draft_length) == max(
            (rung for rung in allowed if rung <= max(0, draft_length)), default=0
        )

    @pytest.mark.parametrize("ladder", [(2, 1), (1, 1), (1, 5)])
    def test_refuses_what_is_no_ladder(self, ladder):
        with pytest.raises(
            SettingsError, match=r"EngineCaps: captured_draft_lengths is not a ladder; found .*; expected asc"
        ):
            EngineCaps(max_draft_length=4, captured_draft_lengths=ladder)

    def test_labels_name_the_device_where_it_matters(self):
        def caps(device):
            return ProposerCaps(needs_host=device == "cpu", inline=device == "cpu", learns=True)

        spec = ProposerSpec(name="x", factory="nowhere:Nothing", summary="", caps=caps)
        assert spec.labels() == ("host on cpu", "one-hot", "inline on cpu", "learns", "device on cuda")
        same = ProposerSpec(name="x", factory="nowhere:Nothing", summary="", caps=lambda _device: ProposerCaps())
        assert same.labels() == ("device", "one-hot")


class TestVerdict:
    """What engines report of one row with a draft of 3 tokens, and what is made of it."""

    @pytest.mark.parametrize(
        ("report", "expected"),
        [
            ({"verified": 3, "accepted": 1, "emitted": 2}, (3, 3, 1, 0, 2)),
            ({"verified": 5, "accepted": 5, "emitted": 6}, (3, 3, 3, 0, 3)),  # padding counts for nobody
            ({"verified": 1, "accepted": 1, "emitted": 2}, (3, 1, 1, 0, 1)),  # the engine dropped two
            ({"verified": 2, "accepted": 1, "emitted": 2, "cut_by_grammar": 1}, (3, 2, 1, 1, 2)),
            ({"verified": 3, "accepted": 2, "emitted": 3, "after_stop": 2}, (3, 0, 0, 0, 0)),  # ends at once
            ({"verified": 3, "accepted": 2, "emitted": 3, "after_stop": 3}, (0, 0, 0, 0, 0)),  # had ended before
            ({"verified": 0, "accepted": 0, "emitted": 0}, (3, 0, 0, 0, 0)),  # a prefill chunk
        ],
    )
    def test_of_one_row(self, report, expected):
        verdict = Verdict.build(ints([3]), Outcome(**{name: ints([count]) for name, count in report.items()}))
        found = (verdict.proposed, verdict.verified, verdict.accepted, verdict.cut_by_grammar, verdict.tested())
        assert tuple(int(count) for count in found) == expected


DTYPES = (torch.int64, torch.int32, torch.float32, torch.bool)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1))
def test_copies_are_equal_and_independent(kinds):
    draw = torch.Generator().manual_seed(0)
    tensors = []
    for dtype, rows, columns, transposed in kinds:
        values = torch.randint(-(1 << 40) if dtype is torch.int64 else 0, 1 << 20, (rows, columns), generator=draw)
        tensors.append(
            (values % 2 == 1 if dtype is torch.bool else values.to(dtype)).T if transposed else values.to(dtype)
        )
    for copies in (to_host(tensors), to_device(tensors, torch.device("cpu"))):
        for copy, tensor in zip(copies, tensors, strict=True):
            assert copy.dtype is tensor.dtype
            assert torch.equal(copy, tensor)
            assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_one_row_of_a_strided_column():
    columns = [torch.arange(26, dtype=dtype).reshape(2, 13)[:1, 3] for dtype in DTYPES[:3]]
    assert [copy.tolist() for copy in to_host(columns)] == [[3]] * 3
