"""The trace: round trip, torn and foreign files, and what its rows say of steps."""

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
from specplug.steps.tracer import StepTracer
from specplug.trace import HEADER, MAX_KEPT, TraceRow, TraceWriter, read_trace, requests_in
from specplug.types.request import Lifecycle, Request, RequestEvent, RequestOptions
from specplug.types.step import Draft, Outcome, StepPlan, Verdict
from tests.types.test_batch_and_plan import make_batch

PAGE = (Path(__file__).parents[1] / "docs" / "trace.md").read_text(encoding="utf-8")
KEPT = ("stopped", "accepted", "rejected", "grammar", "never verified")
NONE = (
    *("prefill", "nothing found", "trimmed", "opted out", "last token"),
    *("not planned", "does not pay", "switched off", "policy failed", "failed"),
)
ROW = TraceRow(
    *("chat-1", "acme", 12, 1795838228.5167, 2, 40, (17, 5), 40, 8, 4, (17, 4, 9)),
    *((0.9, 0.75, 0.5), ("ngram", "ngram", "copy"), None, 3, 1, "rejected"),
)


@st.composite
def trace_rows(draw):
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
    verified = draw(st.integers(0, len(ids)))
    return replace(
        ROW,
        request=draw(st.text()),
        tenant=draw(st.text()),
        step=draw(st.integers(0)),
        base_len=draw(st.integers(0)),
        emitted=tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))),
        ids=tuple(ids),
        parents=draw(st.sampled_from([None, tuple(range(-1, len(ids) - 1))])),
        confidence=tuple(draw(st.floats(0, 1)) for _ in ids),
        source=tuple(draw(st.text()) for _ in ids),
        verified=verified,
        accepted=draw(st.integers(0, verified)),
        reason=draw(st.sampled_from(KEPT)),
    )


def rows_in(path: Path) -> list[TraceRow]:
    return [*read_trace(path)]


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
        assert rows_in(path) == rows
        write(path, more)  # continues the file
        assert rows_in(path) == rows + more

    def test_a_new_file_is_a_trace_at_once_that_other_users_cannot_read(self, path):
        with closing(TraceWriter(path)):
            assert rows_in(path) == []
        assert path.stat().st_mode & 0o077 == 0

    def test_rows_are_in_the_file_at_once(self, path):
        with closing(TraceWriter(path)) as trace, closing(TraceWriter(path)) as other:  # as of another engine
            trace.write(ROW)
            assert rows_in(path) == [ROW]
            other.write(ROW, replace(ROW, step=13))
            trace.write(replace(ROW, step=14))
            assert [row.step for row in read_trace(path)] == [12, 12, 13, 14]
        trace.close()
        assert len(rows_in(path)) == 4

    def test_a_file_that_was_emptied_is_a_trace_again(self, path):
        """As by logrotate's copytruncate."""
        with closing(TraceWriter(path)) as writer:
            writer.write(ROW)
            os.truncate(path, 0)
            writer.write(replace(ROW, request="chat-2"))
        assert [row.request for row in read_trace(path)] == ["chat-2"]

    def test_a_part_of_the_rows_is_read(self, path):
        names = ["é", 'é", "step": 5', "é1"]
        rows = [replace(ROW, request=names[number % 3], step=number) for number in range(100)]
        write(path, rows)
        assert requests_in(path) == [(name, ROW.tenant) for name in names]
        assert requests_in(path, len(path.read_bytes().splitlines()[-1]) + 1) == [("é", ROW.tenant)]
        for place, name in enumerate(names):
            assert [row.step for row in read_trace(path, name)] == [*range(place, 100, 3)]
        size = path.stat().st_size
        last = len(path.read_bytes().splitlines()[-1]) + 1
        for newest, count in ((last - 1, 0), (last, 1), (last + 1, 1), (2 * last + 9, 2), (size, 100), (size + 9, 100)):
            assert [*read_trace(path, newest=newest)] == rows[100 - count :]


class TestFullDisks:
    def test_a_disk_that_is_full_for_a_while_costs_old_rows_and_no_line(self, small_disk, caplog):
        path = small_disk / "trace.jsonl"
        padding = small_disk / "padding"
        trace = TraceWriter(path)
        trace.write(replace(ROW, step=0))
        with suppress(OSError):
            padding.write_bytes(b"x" * 300_000)
        for step in range(1, 10_000):
            trace.write(replace(ROW, step=step))
            assert len(trace._lines) <= MAX_KEPT
        full = [row.step for row in read_trace(path)]
        assert full == list(range(len(full))), "whole lines"
        assert len(caplog.records) == 1
        assert "trace.jsonl cannot be written (No space left on device)" in caplog.text
        padding.unlink()
        trace._lines = deque(list(trace._lines)[-100:], MAX_KEPT)  # so many have room
        trace.close()
        assert [row.step for row in read_trace(path)] == [*full, *range(9_900, 10_000)]
        assert len(caplog.records) == 1

    def test_a_write_that_stops_half_way_leaves_no_part_of_a_line(self, path, monkeypatch):
        with closing(TraceWriter(path)) as trace:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(HEADER) + 20, limits[1]))
            try:
                trace.write(ROW)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert path.read_bytes() == HEADER
        assert rows_in(path) == [ROW]

    @pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
    def test_devices(self, device, caplog):
        with closing(TraceWriter(device)) as trace:
            trace.write(*[ROW] * 3 * MAX_KEPT)
            assert len(trace._lines) == (MAX_KEPT if device == "/dev/full" else 0)
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
            assert rows_in(path) == [ROW] * (whole[:end].count(b"\n") - 1)

    @pytest.mark.parametrize("left", [0, 1, 20, len(HEADER) - 1])
    def test_a_torn_header(self, path, left):
        path.parent.mkdir(parents=True)
        path.write_bytes(HEADER[:left])
        assert rows_in(path) == []
        write(path, [ROW])
        assert rows_in(path) == [ROW]

    def test_the_headers_of_two_writers_that_begin_at_once_are_no_rows(self, path):
        write(path, [ROW])
        path.write_bytes(HEADER + path.read_bytes())
        assert rows_in(path) == [ROW]
        assert len(requests_in(path)) == 1

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

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'{"format": "specplug trace", "version": 2}\n', "no trace of this version; found .*2}.* record it again"),
            (HEADER + b"{}\n", "cannot read the trace"),
            (HEADER + b"[]\n", "cannot read the trace"),
            (HEADER + b"{\n", "cannot read the trace"),
            (None, "cannot read the trace; found FileNotFoundError"),
        ],
    )
    def test_what_is_no_trace_is_not_read(self, path, content, message):
        path.parent.mkdir(parents=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            rows_in(path)


OUTCOMES = [  # proposed, verified, accepted, emitted, cut by grammar, after stop -> reason
    (3, 3, 3, 4, 0, 0, "accepted"),
    (3, 3, 1, 2, 0, 0, "rejected"),
    (3, 2, 1, 2, 1, 0, "rejected"),
    (3, 2, 2, 3, 1, 0, "grammar"),
    (3, 0, 0, 1, 3, 0, "grammar"),
    (3, 2, 2, 3, 0, 0, "never verified"),
    (3, 0, 0, 0, 0, 0, "never verified"),
    (3, 3, 3, 4, 0, 2, "stopped"),
    (3, 3, 2, 2, 0, 0, "stopped"),  # the engine appended up to the stop only
    (0, 0, 0, 1, 0, 0, "prefill"),
    (3, 3, 3, 4, 0, 4, None),  # had ended before, so it has no row
]
TEXT = list(range(100, 112))


class TestRows:
    """Texts have 12 tokens, of which the first 2 are the prompt."""

    @pytest.fixture
    def rows(self, path):
        columns = [torch.tensor(column, dtype=torch.int32) for column in list(zip(*OUTCOMES, strict=True))[:6]]
        proposed, verified, accepted, emitted, cut, after_stop = columns
        draft = Draft.allocate(len(OUTCOMES), 4, sources=("ngram", "references"))
        for row, length in enumerate(proposed.tolist()):
            draft.set_row(row, range(10 * row, 10 * row + length), 0.1, source=[1, 0, 1][:length])
        draft.base_len.copy_(12 - emitted)
        requests = [Request(f"r{row}", 2, 9, tenant="acme" if row == 1 else None) for row in range(len(OUTCOMES))]
        batch = make_batch([TEXT] * len(OUTCOMES), requests=requests)
        verdict = Verdict.build(proposed, Outcome(verified, accepted, emitted, cut, after_stop))
        with closing(StepTracer(TraceWriter(path), lambda *fault: pytest.fail(str(fault)))) as tracer:
            tracer.verified(batch, draft, verdict)
        return {row.request: row for row in read_trace(path)}

    def test_every_reason_of_a_draft(self, rows):
        expected = {f"r{number}": outcome[-1] for number, outcome in enumerate(OUTCOMES) if outcome[-1]}
        assert {name: row.reason for name, row in rows.items()} == expected
        assert {row.reason for row in rows.values()} == {*KEPT, "prefill"}

    def test_a_row_in_full(self, rows):
        assert replace(rows["r1"], time=0.0) == TraceRow(
            request="r1",
            tenant="acme",
            step=0,
            time=0.0,
            batch=len(OUTCOMES),
            start=2,
            emitted=tuple(TEXT[2:]),
            base_len=10,
            allowed=0,
            found=3,
            ids=(10, 11, 12),
            confidence=(0.1, 0.1, 0.1),
            source=("references", "ngram", "references"),
            parents=None,
            verified=3,
            accepted=1,
            reason="rejected",
        )
        assert rows["r7"].emitted == tuple(TEXT[2:10]), "up to the stop"


class TestSteps:
    """One request step by step, in slot 0."""

    @pytest.fixture
    def tracer(self, path):
        with closing(StepTracer(TraceWriter(path), lambda *fault: pytest.fail(str(fault)))) as tracer:
            yield tracer

    def batch(self, length: int, cap: int | None = None, room: int = 9, name: str = "r", **more):
        request = Request(name, 2, 12, options=RequestOptions(num_speculative_tokens=cap))
        return make_batch([TEXT[:length]], requests=[request], room=[room], **more)

    def verify(self, tracer, batch, emitted: int, draft: Draft | None = None, accepted: int = 0):
        draft = Draft.allocate(1, 0) if draft is None else draft
        draft.base_len.copy_(batch.lengths - emitted)
        counts = [torch.tensor([it], dtype=torch.int32) for it in (int(draft.lengths), accepted, emitted)]
        tracer.verified(batch, draft, Verdict.build(draft.lengths, Outcome(*counts)))

    def test_tokens_are_told_once(self, tracer, path):
        self.verify(tracer, self.batch(3), 1)
        self.verify(tracer, self.batch(6), 2)  # a token more has come in steps that were not seen
        tracer.on_event(RequestEvent(Lifecycle.PREEMPTED, Request("r", 2, 9), 0, 10))
        self.verify(tracer, self.batch(7, generations=[11]), 1)
        tracer.on_event(RequestEvent(Lifecycle.FINISHED, Request("r", 2, 9), 0, 11))
        self.verify(tracer, self.batch(4, generations=[12]), 2)
        found = [(row.step, row.start, row.emitted) for row in read_trace(path)]
        texts = [(2, 3), (3, 6), (6, 7), (2, 4)]
        assert found == [(step, start, tuple(TEXT[start:end])) for step, (start, end) in enumerate(texts)]

    @pytest.mark.parametrize(
        ("plan", "how", "failed", "expected"),
        [
            (StepPlan(4), {}, False, "nothing found"),
            (StepPlan(4), {}, True, "failed"),
            (StepPlan(4), {"cap": 0}, False, "opted out"),
            (StepPlan(4), {"room": 1}, False, "last token"),
            (StepPlan(0), {}, False, "not planned"),
            (StepPlan(4, caps={"r": 0}), {}, False, "not planned"),
            (StepPlan(0, why="does not pay"), {}, False, "does not pay"),
            (StepPlan(4), {"sampled": [False]}, False, "prefill"),
        ],
    )
    def test_why_there_is_no_draft(self, tracer, path, plan, how, failed, expected):
        before = self.batch(3, **how)
        tracer.drafted(before, Draft.allocate(1, 4), plan, failed=failed)
        self.verify(tracer, self.batch(4), 1)
        self.verify(tracer, self.batch(5), 1)
        assert [row.reason for row in read_trace(path)] == [expected, "prefill"]

    def test_what_was_found_and_trimmed(self, tracer, path):
        draft = Draft.allocate(1, 4, sources=("a",))
        draft.set_row(0, [7, 8, 9], 0.5)
        tracer.drafted(self.batch(3, cap=3), draft, StepPlan(4))
        self.verify(tracer, self.batch(4), 1)
        tracer.drafted(self.batch(4), draft, StepPlan(4))
        draft.set_row(0, [7], 0.5)
        self.verify(tracer, self.batch(5), 1, draft)
        found = [(row.allowed, row.found, len(row.ids), row.reason) for row in read_trace(path)]
        assert found == [(3, 3, 0, "trimmed"), (4, 3, 1, "rejected")]

    @pytest.mark.parametrize(("accepted", "nodes", "reason"), [(1, [1], "rejected"), (2, [1, 3], "accepted")])
    def test_the_path_through_a_tree(self, tracer, path, accepted, nodes, reason):
        """The text goes on with 103 and 104."""
        draft = Draft.allocate(1, 4, trees=True, sources=("a",))
        draft.set_row(0, [9, 103, 104, 104 if accepted == 2 else 9], 0.5, parents=[-1, -1, 0, 1])
        self.verify(tracer, self.batch(3 + accepted + 1), accepted + 1, draft, accepted)
        (row,) = read_trace(path)
        assert (row.parents, row.accepted_nodes(), row.reason) == ((-1, -1, 0, 1), nodes, reason)
        assert row.start == 2, "the first token came with the prompt"

    def test_without_request_ids_and_sources(self, tracer, path):
        draft = Draft.allocate(1, 1)
        draft.set_row(0, [7], 0.5)
        self.verify(tracer, replace(self.batch(3), request_ids=None, requests=None), 1, draft)
        (row,) = read_trace(path)
        assert (row.request, row.tenant, row.start, row.source) == ("slot 0.10", "", 2, ("none",))


class TestDocs:
    def test_the_example_is_a_trace(self, path):
        path.parent.mkdir(parents=True)
        path.write_text(re.search(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)[1])
        assert rows_in(path)[0] == ROW

    def test_fields_and_reasons_are_listed(self):
        listed = re.findall(r"^\| (`[\w ]+`(?:, `[\w ]+`)*) \|", PAGE, flags=re.MULTILINE)
        names = [name for cell in listed for name in re.findall("`([^`]+)`", cell)]
        assert names == [*(f.name for f in fields(TraceRow)), *KEPT, *NONE]
