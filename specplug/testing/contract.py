"""The conformance kit's contract part: inherit `ProposerContract`, name your proposer, run pytest.

    class TestEcho(ProposerContract):
        spec = ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=ProposerCaps(needs_host=True))

Each test is one clause of the contract that `specplug.interfaces.Proposer` states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from specplug.specs import ProposerSpec
from specplug.testing.driver import NO_OPTIONS, Driver, RowDraft
from specplug.testing.pipeline_driver import PipelineDriver
from specplug.types.batch import BatchView
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN, Draft
from specplug.types.request import Lifecycle

_PHRASE = (5, 9, 12, 7, 3, 21, 40, 33, 18, 2)
DEFAULT_TEXTS: tuple[tuple[int, ...], ...] = (
    _PHRASE * 4,
    (*_PHRASE[:6], 50, *_PHRASE, 51, *_PHRASE[2:], 50, *_PHRASE),
    (1, 2, 3, 4) * 6,
    (8,),
    tuple(range(60, 20, -1)),
)
"""Copies, copies with edits, a loop, a text of one token, and one without any repetition."""

Drafts = dict[str, RowDraft]
Orders = Callable[[list[str], int], list[str]]


class ProposerContract:
    """What every proposer must satisfy.  Override the attributes; heavy ones may be set by an autouse fixture.

    Attributes:
        spec: the proposer under test.
        options: its own settings.
        vocab_size: ids in `texts` are below it.
        texts: each is fed from half its length to its end; the proposer must draft for at least one of them.
        width: most draft tokens per request and step, at least 2.
        device: where batches lie; leave it for proposers that need the host.
    """

    spec: ProposerSpec
    options: Mapping[str, object] = NO_OPTIONS
    vocab_size: int = 64
    texts: Sequence[Sequence[int]] = DEFAULT_TEXTS
    width: int = 4
    device: str = "cpu"

    driver_type: ClassVar[type[Driver]] = Driver

    def driver(self, kind: type[Driver] = Driver, **changes: Any) -> Driver:
        """Return a new proposer in a new engine that is large enough for the texts."""
        return kind(
            self.spec,
            self.options,
            vocab_size=self.vocab_size,
            max_slots=len(self.texts) + 3,
            max_length=max(len(text) for text in self.texts) + self.width + 1,
            max_width=self.width,
            device=self.device,
            **changes,
        )
