"""Streams that fail, put in place of an engine's within its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specplug.errors import EngineError
from specplug.pipeline.stream.launch import InlineStream
from specplug.runtime import stream_steps


class Refusing(InlineStream):
    """Refuses every n-th launch."""

    def __init__(self, every: int = 1) -> None:
        self._every, self._launches = every, 0

    def launch(self, function: int, argument: int) -> None:
        self._launches += 1
        if self._launches % self._every == 0:
            raise EngineError.build("the CUDA driver refused to launch a host function", found="planted")
        super().launch(function, argument)


@contextmanager
def refused(steps: Any, every: int) -> Iterator[None]:
    """Let the stream of an engine's steps refuse every n-th launch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_stream", Refusing(every))
        yield


@contextmanager
def refused_at_start() -> Iterator[list[str]]:
    """Let streams of steps that start meanwhile refuse; yield what is warned of."""
    warned: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_steps, "stream_for", lambda device: Refusing())
        patch.setattr("specplug.runtime.first_step.logger.warning", lambda text, *given: warned.append(text % given))
        yield warned
