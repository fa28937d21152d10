"""The trace: round trip, torn and foreign files, and why a row ended where it did."""

from __future__ import annotations

import os
import re
import resource
from collections import deque
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import TraceError
from specplug.trace import HEADER, MOST_KEPT, TraceRow, TraceWriter, rows_from
from specplug.types.draft import Draft
from specplug.types.verdict import Outcome, Verdict
from tests.trace_reader import EXAMPLE, PAGE, read_trace, shown
from tests.types.test_batch_and_plan import make_batch

REASONS = ("stopped", "accepted", "rejected", "grammar", "never verified")
ROW = TraceRow("chat-1", 12, 40, (17, 4, 9), (0.9, 0.75, 0.5), ("ngram", "ngram", "copy"), 3, 1, "rejected")


@st.composite
def trace_rows(draw):
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
    verified = draw(st.integers(0, len(ids)))
    return TraceRow(
        request=draw(st.text()),
        step=draw(st.integers(0)),
        base_len=draw(st.integers(0)),
        ids=tuple(ids),
        confidence=tuple(draw(st.floats(0, 1)) for _ in ids),
        source=tuple(draw(st.text()) for _ in ids),
        verified=verified,
        accepted=draw(st.integers(0, verified)),
        reason=draw(st.sampled_from(REASONS)),
    )


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "runs" / "today" / "trace.jsonl"


def write(path: Path, rows: list[TraceRow]) -> None:
    with closing(TraceWriter(path)) as trace:
        for row in rows:
            trace.write(row)


class TestRoundTrip:
    @given(st.lists(trace_rows(), max_size=4), st.lists(trace_rows(), max_size=2))
    @settings(max_examples=60, deadline=None)
    def test_what_is_written_is_read(self, tmp_path_factory, rows, more):
        path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
        write(path, rows)
        assert read_trace(path) == rows
        write(path, more)  # continues the file
        assert read_trace(path) == rows + more

    def test_a_new_file_is_a_trace_at_once_that_other_users_cannot_read(self, path):
        with closing(TraceWriter(path)):
            assert read_trace(path) == []
        assert path.stat().st_mode & 0o077 == 0

    def test_rows_are_collected_until_a_flush(self, path):
        with closing(TraceWriter(path)) as trace:
            trace.write(ROW)
            assert read_trace(path) == []
            trace.flush()
            assert read_trace(path) == [ROW]
            for _ in range(255):
                trace.write(ROW)
            assert len(read_trace(path)) == 1
            trace.write(ROW)
            assert len(read_trace(path)) == 257
            trace.write(ROW)
        trace.close()
        assert len(read_trace(path)) == 258


class TestFullDisks:
    def test_a_disk_that_is_full_for_a_while_costs_old_rows_and_no_line(self, small_disk, caplog):
        path, padding = small_disk / "trace.jsonl", small_disk / "padding"
        trace = TraceWriter(path)
        trace.write(replace(ROW, step=0))
        trace.flush()
        with suppress(OSError):
            padding.write_bytes(b"x" * 300_000)
        for step in range(1, 10_000):
            trace.write(replace(ROW, step=step))
            assert len(trace._lines) <= MOST_KEPT
        full = [row.step for row in read_trace(path)]
        assert full == list(range(len(full))), "whole lines"
        assert len(caplog.records) == 1
        assert "trace.jsonl cannot be written (No space left on device)" in caplog.text
        padding.unlink()
        trace._lines = deque(list(trace._lines)[-100:], MOST_KEPT)  # so many have room
        trace.close()
        assert [row.step for row in read_trace(path)] == [*full, *range(9_900, 10_000)]
        assert len(caplog.records) == 1

    def test_a_write_that_stops_half_way_leaves_no_part_of_a_line(self, path, monkeypatch):
        with closing(TraceWriter(path)) as trace:
            trace.write(ROW)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(HEADER) + 20, limits[1]))
            try:
                trace.flush()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert path.read_bytes() == HEADER
        assert read_trace(path) == [ROW]

    @pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
    def test_devices(self, device, caplog):
        with closing(TraceWriter(device)) as trace:
            for _ in range(3 * MOST_KEPT):
                trace.write(ROW)
            assert len(trace._lines) <= (MOST_KEPT if device == "/dev/full" else 256)
        assert len(caplog.records) == (device == "/dev/full")

    def test_what_is_no_file_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "file").touch()
        for path in (tmp_path / "fifo", tmp_path, tmp_path / "file" / "trace.jsonl", "a\0b"):
            with pytest.raises(TraceError, match=r"cannot write the trace; found .*Choose another path"):
                TraceWriter(path)


class TestTornFiles:
    def test_a_torn_line_is_not_read(self, path):
        write(path, [ROW, ROW])
        whole = path.read_bytes()
        for end in range(len(whole) - 1, len(HEADER), -17):
            path.write_bytes(whole[:end])
            assert read_trace(path) == [ROW] * (whole[:end].count(b"\n") - 1)

    @pytest.mark.parametrize("left", [0, 1, 20, len(HEADER) - 1])
    def test_a_torn_header(self, path, left):
        path.parent.mkdir(parents=True)
        path.write_bytes(HEADER[:left])
        assert read_trace(path) == []
        write(path, [ROW])
        assert read_trace(path) == [ROW]

    @pytest.mark.parametrize("torn", [b"x", b"x" * 200_000])
    def test_a_writer_drops_the_torn_line_and_goes_on(self, path, torn):
        write(path, [ROW])
        with path.open("ab") as file:
            file.write(torn)
        write(path, [replace(ROW, step=13)])
        assert [row.step for row in read_trace(path)] == [12, 13]


class TestExternalFiles:
    @pytest.mark.parametrize(
        ("content", "found"),
        [
            (b"hello\n", "'hello'"),
            (b"no newline", "'no newline'"),
            (b"\xff\xfe\n", "'\ufffd\ufffd'"),
            (b'{"format": "specplug trace", "version": 1}\n', '\'{"format": "specplug trace", "version": 1}\''),
        ],
    )
    def test_no_trace_of_this_version_is_continued(self, path, content, found):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        message = f"line 1: this is no trace of this version; found {found}; expected {HEADER.decode().strip()}"
        with pytest.raises(TraceError, match=re.escape(message)):
            TraceWriter(path)
        assert path.read_bytes() == content

    def test_no_trace_of_another_version_is_read(self, path):
        path.parent.mkdir(parents=True)
        path.write_text('{"format": "specplug trace", "version": 1}\n')
        with pytest.raises(ValueError, match="is no trace of version 2"):
            read_trace(path)


FATES = [  # proposed, verified, accepted, emitted, cut by grammar, after stop -> reason
    (3, 3, 3, 4, 0, 0, "accepted"),
    (3, 3, 1, 2, 0, 0, "rejected"),
    (3, 2, 1, 2, 1, 0, "rejected"),
    (3, 2, 2, 3, 1, 0, "grammar"),
    (3, 0, 0, 1, 3, 0, "grammar"),
    (3, 2, 2, 3, 0, 0, "never verified"),
    (3, 0, 0, 0, 0, 0, "never verified"),
    (3, 3, 3, 4, 0, 2, "stopped"),
    (3, 3, 2, 2, 0, 0, "stopped"),  # the engine appended up to the stop only
    (0, 0, 0, 1, 0, 0, None),  # nothing drafted, nothing to tell
]


class TestRowsFrom:
    def step(self):
        columns = [torch.tensor(column, dtype=torch.int32) for column in list(zip(*FATES, strict=True))[:6]]
        proposed, verified, accepted, emitted, cut, after_stop = columns
        draft = Draft.allocate(len(FATES), 4, sources=("ngram", "references"))
        for row, length in enumerate(proposed.tolist()):
            draft.set_row(row, range(10 * row, 10 * row + length), 0.1, source=[1, 0, 1][:length])
        draft.base_len.copy_(torch.arange(len(FATES)) + 5)
        verdict = Verdict.build(proposed, Outcome(verified, accepted, emitted, cut, after_stop))
        return make_batch([[1]] * len(FATES)), draft, verdict

    def test_every_reason(self):
        rows = rows_from(7, *self.step())
        assert [row.reason for row in rows] == [fate[-1] for fate in FATES[:-1]]
        assert {row.reason for row in rows} == set(REASONS)

    def test_a_row_in_full(self):
        assert rows_from(7, *self.step())[1] == TraceRow(
            request="r1",
            step=7,
            base_len=6,
            ids=(10, 11, 12),
            confidence=(0.1, 0.1, 0.1),
            source=("references", "ngram", "references"),
            verified=3,
            accepted=1,
            reason="rejected",
        )

    def test_without_request_ids_and_sources(self):
        batch, draft, verdict = self.step()
        row = rows_from(7, replace(batch, request_ids=None), replace(draft, sources=()), verdict)[1]
        assert (row.request, row.source) == (f"slot {int(batch.slots[1])}.{int(batch.generations[1])}", ("none",) * 3)


class TestDocs:
    def test_the_example_is_a_trace(self, path, monkeypatch, capsys):
        path.parent.mkdir(parents=True)
        path.with_name("run.jsonl").write_text(re.search(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)[1])
        monkeypatch.chdir(path.parent)
        assert read_trace("run.jsonl")[0] == ROW
        exec(EXAMPLE, shown)
        assert capsys.readouterr().out == "chat-1 1 of 3\nchat-2 2 of 2\n"

    def test_fields_and_reasons_are_listed(self):
        listed = re.findall(r"^\| `([\w ]+)` \|", PAGE, flags=re.MULTILINE)
        assert listed == [*(f.name for f in fields(TraceRow)), *REASONS]
