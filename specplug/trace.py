"""Traces: one JSON line per drafted row and step, to explain what speculation did.

The first line of a file names the format and its version; docs/trace.md describes both, and has a reader.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections import deque
from dataclasses import dataclass, fields
from io import RawIOBase
from pathlib import Path

import torch

from specplug.errors import TraceError, describe
from specplug.metrics import NO_SOURCE
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.verdict import Verdict

logger = logging.getLogger("specplug")

HEADER = b'{"format": "specplug trace", "version": 2}\n'

MOST_KEPT = 4096
"""Most rows that wait for a file that cannot be written."""

_FLUSH_EVERY = 256  # rows
_BLOCK = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The result of one request's draft at one step.

    Attributes:
        request: the engine's request id, or "slot <slot>.<generation>" where the worker has no ids.
        step: number of the step, counted from 0 by the process that writes.
        base_len: length of the context that the draft continues.
        ids, confidence, source: the draft tokens (in a tree: its nodes), the confidence of each, and the source of
            each.
        verified, accepted: number of draft tokens that went through the target, and that were kept.
        reason: why no more tokens were kept; the first of these that applies:
            "stopped": the request ended in this step: some of its tokens are after a stop, or were not appended;
            "accepted": all tokens were accepted;
            "rejected": the target rejected the token after the accepted ones;
            "grammar": a grammar removed it before verification;
            "never verified": the engine dropped it before verification.
    """

    request: str
    step: int
    base_len: int
    ids: tuple[int, ...]
    confidence: tuple[float, ...]
    source: tuple[str, ...]
    verified: int
    accepted: int
    reason: str


_FIELDS = tuple(f.name for f in fields(TraceRow))


def rows_from(step: int, batch: EngineBatch, draft: Draft, verdict: Verdict) -> list[TraceRow]:
    """Return the trace rows of one step, one per batch row that has a draft.

    `draft` and `verdict` are in the row order of `batch`, the batch after verification.  Reads back four tensors, so on
    a GPU it waits for the step.  Confidences are rounded to six decimals.
    """
    names = ("proposed", "verified", "accepted", "cut_by_grammar", "emitted", "after_stop")
    columns = [getattr(verdict, name) for name in names]
    columns += [draft.lengths, draft.base_len, batch.slots, batch.generations]
    counts = torch.stack([column.long() for column in columns], 1).tolist()
    ids, confidence, sources = draft.token_ids.tolist(), draft.confidence.tolist(), draft.source.tolist()
    named = dict(enumerate(draft.sources))
    rows = []
    for row, (*fate, length, base_len, slot, generation) in enumerate(counts):
        if length:
            rows.append(
                TraceRow(
                    request=f"slot {slot}.{generation}" if batch.request_ids is None else batch.request_ids[row],
                    step=step,
                    base_len=base_len,
                    ids=tuple(ids[row][:length]),
                    confidence=tuple(round(level, 6) for level in confidence[row][:length]),
                    source=tuple(named.get(it, NO_SOURCE) for it in sources[row][:length]),
                    verified=fate[1],
                    accepted=fate[2],
                    reason=_reason(*fate),
                )
            )
    return rows


def _reason(proposed: int, verified: int, accepted: int, cut_by_grammar: int, emitted: int, after_stop: int) -> str:
    """Return why no more than `accepted` tokens were kept: see `TraceRow.reason`."""
    if after_stop or (verified and emitted <= accepted):  # otherwise a step emits one more token
        return "stopped"
    if accepted == proposed:
        return "accepted"
    if accepted < verified:
        return "rejected"
    return "grammar" if cut_by_grammar else "never verified"


class TraceWriter:
    """Appends rows to a file, which is created with its folders if it does not exist, or to a character device.

    Rows are buffered and written in whole lines, every 256 rows and at `flush` and `close`.  What cannot be written,
    because the disk is full for example, is kept for the next time, up to `MOST_KEPT` rows; then the oldest are lost.
    If a process died while writing, the incomplete last line is dropped when the file is reopened.  Only one writer at
    a time may use a file.

    Raises:
        TraceError: the file cannot be opened, or is not a trace of this version.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lines: deque[bytes] = deque(maxlen=MOST_KEPT)
        self._since_flush = 0
        self._warned = False
        self._file = _open_for_rows(self._path)
        self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self.flush()

    def write(self, row: TraceRow) -> None:
        """Add one row."""
        self._lines.append(json.dumps({name: getattr(row, name) for name in _FIELDS}, allow_nan=False).encode() + b"\n")
        self._since_flush += 1
        if self._since_flush >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write all buffered rows to the file, whole or not at all; the first failure is logged."""
        self._since_flush, end = 0, self._file.seek(0, os.SEEK_END)
        data = memoryview(b"".join([*([HEADER] if end == 0 else []), *self._lines]))
        try:
            while data:
                data = data[self._file.write(data) or 0 :]
            self._lines.clear()
        except OSError as error:
            if self._is_regular:
                self._file.truncate(end)
            if not self._warned:
                self._warned = True
                kept = f"the newest {MOST_KEPT} rows are kept until it can"
                logger.warning("trace: %s cannot be written (%s); %s", self._path, error.strerror, kept)

    def close(self) -> None:
        """Flush and close; further calls have no effect."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def _open_for_rows(path: Path) -> RawIOBase:
    """Open or create a trace without an incomplete last line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_char_device():
            return path.open("wb", buffering=0)
        path.touch(mode=0o600)  # it holds texts, as tokens
        if not path.is_file():
            raise OSError(errno.EINVAL, "neither a file nor a character device")
        file = path.open("r+b", buffering=0)
    except (OSError, ValueError) as error:
        raise TraceError.build(
            "cannot write the trace",
            who=str(path),
            found=describe(error),
            expected="a file that can be created or continued",
            remedy="Choose another path",
        ) from error
    try:
        header = file.readline()
        if not HEADER.startswith(header):  # it may be incomplete, too
            raise TraceError.build(
                "this is no trace of this version",
                who=f"{path}, line 1",
                found=repr(header.decode(errors="replace").strip()[:80]),
                expected=HEADER.decode().strip(),
                remedy="Choose another path",
            )
        file.truncate(file.seek(_end_of_lines(file)))
    except BaseException:
        file.close()
        raise
    return file


def _end_of_lines(file: RawIOBase) -> int:
    """Return the offset after the last newline, searching from the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = (file.read(end - start) or b"").rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
