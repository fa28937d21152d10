"""Operator control of a running server: speculation on or off, and a limit on the draft length.

Orders arrive over HTTP (see `endpoints`) or in a watched file.  The scheduler's process holds the state and reads the
ceiling at every step.  The latest change wins, whichever way it came.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specplug.errors import SettingsError
from specplug.input_errors import json_value, require_mapping, validate
from specplug.settings.model import MAX_SPECULATIVE_TOKENS, Settings

logger = logging.getLogger("specplug")

Mode = Literal["on", "off"]
_MAX_BYTES = 65536  # the scheduler reads the file between two steps, so it must be short
_Signature = tuple[int, int, int]
_UNREAD: _Signature = (0, 0, 0)  # that a file was there which could not be read


class Order(BaseModel):
    """An operator's order.  An omitted key keeps its current value (over HTTP) or its start-up value (in the file)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    mode: Mode | None = Field(default=None, description="'off' serves every request by plain decoding, 'on' speculates")
    num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="most draft tokens per request and step, where the server would draft more; null sets no limit",
    )


class OperatorControl:
    """The operator's control of one server.

    Args:
        settings: `mode` gives the initial state; `control` names the watched file.
        clock: returns seconds, for the interval between checks of the file.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._start: Mode = settings.mode
        self._mode: Mode = settings.mode
        self._limit: int | None = None
        self._by = "start-up"
        file = settings.control.file
        self._path = None if file is None else Path(file).absolute()
        self._interval = settings.control.poll_seconds
        self._clock = clock
        self._seen: _Signature | None = None
        self._file_error: str | None = None
        self._next_look = clock()
        if self._path is not None:
            self._look()

    def ceiling(self) -> int | None:
        """Return the most draft tokens that a request may get in the next step; None for no limit.

        The scheduler calls this at every step.  It checks the file's time stamp every `control.poll_seconds` and reads
        the file only if that changed.
        """
        if self._path is not None and self._clock() >= self._next_look:
            self._look()
        return 0 if self._mode == "off" else self._limit

    def set(self, **order: Any) -> dict[str, Any]:
        """Apply an order, whose keys are those of `Order`; return the resulting state.

        Omitted keys keep their value; ``num_speculative_tokens=None`` lifts the limit.

        Raises:
            SettingsError: keys are unknown or values bad; one message lists all of them, and nothing changes.
        """
        if self._path is not None:
            self._look()  # a change of the file made before this order must not undo it later
        requested = parse_order(order, "order")
        limit = requested.num_speculative_tokens if "num_speculative_tokens" in order else self._limit
        self._change(requested.mode or self._mode, limit, "request")
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return the current state and the source of its last change, ready for JSON."""
        return {
            "mode": self._mode,
            "num_speculative_tokens": self._limit,
            "ceiling": self.ceiling(),
            "set_by": self._by,
            "file": None if self._path is None else str(self._path),
            "file_error": self._file_error,
        }

    def _look(self) -> None:
        """Apply the file's order if the file has changed since the last check."""
        assert self._path is not None
        self._next_look = self._clock() + self._interval
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            if self._seen is not None:
                self._seen = None
                self._file_error = None
                self._change(self._start, None, "start-up, as the control file is gone")
            return
        except OSError as error:
            self._seen = self._seen and _UNREAD
            self._report(f"cannot look at the control file; found {error.strerror}")
            return
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)  # the inode detects a file moved over it
        if signature == self._seen:
            return
        if self._seen != _UNREAD:  # else its problem has been logged
            self._file_error = None
        self._seen = signature
        try:
            order = parse_order(_load(self._path, stat.S_ISREG(status.st_mode)), str(self._path))
        except SettingsError as error:
            if isinstance(error.__cause__, OSError):  # it may be readable at the next look, with the same signature
                self._seen = _UNREAD
            self._report(str(error))
        else:
            self._file_error = None
            self._change(order.mode or self._start, order.num_speculative_tokens, "control file")

    def _report(self, what: str) -> None:
        """Log a problem with the file, once until the file changes."""
        if what != self._file_error:
            self._file_error = what
            logger.error("%s: the operator's control is unchanged: %s", what, self._words())

    def _change(self, mode: Mode, limit: int | None, by: str) -> None:
        before = self._words()
        self._mode = mode
        self._limit = limit
        self._by = by
        if self._words() != before:
            logger.info("speculation: %s, by %s", self._words(), by)

    def _words(self) -> str:
        limit = "" if self._limit is None else f", at most {self._limit} draft tokens"
        return f"mode {self._mode}{limit}"


def parse_order(order: Any, who: str) -> Order:
    """Validate an order given as plain data by `who`.

    Raises:
        SettingsError: it is not a mapping, or keys are unknown or values bad; one message lists all of them.
    """
    require_mapping(order, SettingsError, "malformed order", who=who)
    return validate(Order, order, SettingsError, "key", who)


def _load(path: Path, is_file: bool) -> Any:
    """Read the control file, which must be a plain file: any other kind could block the scheduler forever."""
    what = "cannot read the control file"
    if not is_file:
        raise SettingsError.build(what, who=str(path), expected="a plain file")
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError.build(what, who=str(path), found=error.strerror) from error
    if len(text) > _MAX_BYTES:
        raise SettingsError.build(what, who=str(path), found=f"more than {_MAX_BYTES} bytes")
    return json_value(text, SettingsError, what, who=str(path), expected="a JSON object")
