"""Proposers that misbehave on request.  Between their faults they draft like `bigram`, on the host or on the device."""

from __future__ import annotations

import time
from typing import NoReturn

import torch
from torch import Tensor

from specplug.interfaces import PluginContext
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch
from specplug_testkit.bigram import Bigram
from specplug_testkit.options import RaisesOptions, SlowOptions

MESSAGE = "raised as told"
GARBAGE = ("range", "negative", "nan", "length", "source", "padding")
"""The faults of drafts, one per step, in turn."""


class Planted(RuntimeError):
    """The exception that the test plug-ins raise."""


def _refuse(*_args: object) -> NoReturn:
    raise ZeroDivisionError("of the exception's own")


class Hostile(BaseException):
    """An exception whose every method raises, those that read its attributes included."""

    __str__ = __repr__ = __getattribute__ = __del__ = _refuse  # type: ignore[assignment]


class RaisesOnDevice(Bigram):
    """Raises in one kind of call."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: RaisesOptions = context.options or RaisesOptions()
        self._calls = 0

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().propose(batch, limits, draft)
        self._count("propose")

    def on_event(self, event: Event) -> None:
        self._count("on_event")

    def _count(self, call: str) -> None:
        options = self._options
        if call != options.call or options.rank not in (None, self.context.rank):
            return
        self._calls += 1
        if (self._calls - 1) % options.every == 0:
            raise Hostile if options.hostile else Planted(f"{MESSAGE}, {call} {self._calls - 1}")


class RaisesOnHost(RaisesOnDevice):
    """The same, registered for the host."""


class GarbageOnDevice(Bigram):
    """Spoils a sound draft."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._step = 0

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().propose(batch, limits, draft)
        kind = GARBAGE[self._step % len(GARBAGE)]
        self._step += 1
        if kind in ("range", "negative"):
            draft.token_ids.fill_(2**31 - 1 if kind == "range" else -5)
            draft.lengths.fill_(draft.draft_length)
        elif kind == "nan":
            draft.confidence.fill_(torch.nan)
        elif kind == "length":
            draft.lengths.fill_(draft.draft_length + 7)
        elif kind == "source":
            draft.source.fill_(99)
        elif kind == "padding":
            draft.token_ids.fill_(1)  # after the lengths, too


class GarbageOnHost(GarbageOnDevice):
    """The same, registered for the host; "length" is then a buffer of another size, too."""

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        resize = GARBAGE[self._step % len(GARBAGE)] == "length"
        super().propose(batch, limits, draft)
        if resize:
            draft.confidence.resize_(draft.batch_size, draft.draft_length + 1)


class Slow(Bigram):
    """Sleeps."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: SlowOptions = context.options or SlowOptions()
        self._step = 0

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().propose(batch, limits, draft)
        if self._step % self._options.every == 0:
            time.sleep(self._options.seconds)
        self._step += 1
