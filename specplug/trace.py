"""Traces: one JSON line per request and step, to explain what speculation did.

The first line of a file names the format and its version; docs/trace.md describes both.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from io import RawIOBase
from pathlib import Path
from typing import Any

from specplug.errors import SpecplugError, TraceError, describe

logger = logging.getLogger("specplug")

HEADER = b'{"format": "specplug trace", "version": 3}\n'

MAX_KEPT = 4096
"""Most rows that wait for a file that cannot be written."""

_BLOCK = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The result of one step of one request.

    Attributes:
        request: the engine's request id, or "slot <slot>.<generation>" where the worker has no ids.
        tenant: the request's tenant, "" for none.
        step: number of the step, counted from 0 by the process that writes.
        time: when the result was known, in seconds since 1970.
        batch: number of requests in the step.
        start: length of the context that `emitted` continues.
        emitted: what the request got since its last row, without the tokens after a stop.  Of its last tokens
            `accepted` were drafted, if its draft was accepted, and then comes the target's own.
        base_len: length of the context that the draft continues.
        allowed: the most draft tokens that the plan and the request allowed.
        found: number of draft tokens before the policy trimmed them.
        ids, confidence, source: the draft tokens that were left (in a tree: its nodes), the confidence of each, and the
            source of each.
        parents: in a tree, the index of each node's parent, -1 for those that continue the context; None of a chain.
        verified, accepted: number of draft tokens that went through the target, and that were kept.
        reason: why no more tokens were kept; docs/trace.md lists the reasons.
    """

    request: str
    tenant: str
    step: int
    time: float
    batch: int
    start: int
    emitted: tuple[int, ...]
    base_len: int
    allowed: int
    found: int
    ids: tuple[int, ...]
    confidence: tuple[float, ...]
    source: tuple[str, ...]
    parents: tuple[int, ...] | None
    verified: int
    accepted: int
    reason: str

    def accepted_nodes(self) -> list[int]:
        """Return the indices of the accepted draft tokens: of a tree, along the path that the text took."""
        if self.parents is None:
            return list(range(self.accepted))
        nodes: list[int] = []
        for token in self.emitted[self.base_len - self.start :][: self.accepted]:
            above = nodes[-1] if nodes else -1
            at = (node for node, up in enumerate(self.parents) if up == above and self.ids[node] == token)
            nodes.append(next(at, -2))
        return nodes


def read_trace(path: str | Path, request: str | None = None, newest: int | None = None) -> Iterator[TraceRow]:
    """Yield the rows of a trace, without an incomplete last line.

    Args:
        path: the file.
        request: only those of this request, by its id in full.
        newest: only those that begin in so many last bytes.

    Raises:
        TraceError: the file cannot be read, or is not a trace of this version.
    """
    begin = b"" if request is None else f'{{"request": {json.dumps(request)}, '.encode()
    with _reading(path):
        for line in _lines(path, newest):
            if line.startswith(begin):
                found = json.loads(line)
                values = [found[field.name] for field in fields(TraceRow)]
                made: list[Any] = [tuple(it) if isinstance(it, list) else it for it in values]
                yield TraceRow(*made)


def requests_in(path: str | Path, newest: int | None = None) -> list[tuple[str, str]]:
    """Return the ids of the requests in a trace, each with its tenant, in the order of their first rows.

    It takes a second for 256 MiB or so, whatever clients have named their requests.  Parameters and errors are those
    of `read_trace`.
    """
    with _reading(path):
        heads = dict.fromkeys(line.partition(b', "step": ')[0] for line in _lines(path, newest))
        found = [json.loads(head + b"}") for head in heads]
        return [(each["request"], each["tenant"]) for each in found]


def _lines(path: str | Path, newest: int | None) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        header = file.readline()
        if not HEADER.startswith(header):
            raise _external(path, header, "Read it with the release that wrote it, or record it again")
        skipped = 0 if newest is None else file.seek(0, os.SEEK_END) - newest
        file.seek(max(len(header), skipped - 1))
        if skipped > len(header):
            file.readline()  # the end of a line, perhaps only its newline
        # Two engines that begin a file at once both write its header.
        yield from (line for line in file if line.endswith(b"\n") and line != HEADER)


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TraceError.build("cannot read the trace", who=str(path), found=describe(error)) from error


def _external(path: str | Path, header: bytes, remedy: str) -> SpecplugError:
    return TraceError.build(
        "this is no trace of this version",
        who=f"{path}, line 1",
        found=repr(header.decode(errors="replace").strip()[:80]),
        expected=HEADER.decode().strip(),
        remedy=remedy,
    )


class TraceWriter:
    """Appends rows to a file, which is created with its folders if it does not exist, or to a character device.

    Rows are written at once, in whole lines.  What cannot be written, because the disk is full for example, is kept for
    the next time, up to `MAX_KEPT` rows; then the oldest are lost.  If a process died while writing, the incomplete
    last line is dropped when the file is reopened.

    Raises:
        TraceError: the file cannot be opened, or is not a trace of this version.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lines: deque[bytes] = deque(maxlen=MAX_KEPT)
        self._warned = False
        self._file = _open_for_rows(self._path)
        self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self.write()

    def write(self, *rows: TraceRow) -> None:
        """Add rows to the file, whole or not at all; the first failure is logged."""
        self._lines += [json.dumps(asdict(row), allow_nan=False).encode() + b"\n" for row in rows]
        end = self._file.seek(0, os.SEEK_END)
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
                kept = f"the newest {MAX_KEPT} rows are kept until it can"
                logger.warning("trace: %s cannot be written (%s); %s", self._path, error.strerror, kept)

    def close(self) -> None:
        """Write what is left and close; further calls have no effect."""
        if not self._file.closed:
            self.write()
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
        file = path.open("a+b", buffering=0)  # engines of one server may share it
    except (OSError, ValueError) as error:
        raise TraceError.build(
            "cannot write the trace",
            who=str(path),
            found=describe(error),
            expected="a file that can be created or continued",
            remedy="Choose another path",
        ) from error
    try:
        file.seek(0)
        header = file.readline()
        if not HEADER.startswith(header):  # it may be incomplete, too
            raise _external(path, header, "Choose another path")
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
