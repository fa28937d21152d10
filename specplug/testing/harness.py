"""Harness of the proposer contract: the proposer under test, the texts, and how they are fed and compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from specplug.plugins.registry import Registry
from specplug.plugins.specs import ProposerSpec
from specplug.testing.batches import DraftedStep, RowDraft
from specplug.testing.driver import NO_OPTIONS, Driver
from specplug.types.caps import ProposerCaps
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


class ProposerHarness:
    """Feeds texts to a proposer and compares its drafts.

    Override the attributes; an autouse fixture may set expensive ones instead.

    Attributes:
        spec: the proposer under test.
        options: its own settings, as arguments of its options model.
        vocab_size: upper bound of the ids in `texts`, exclusive.
        texts: each is fed from half its length to its end; the proposer must draft for at least one of them.
        draft_length: most draft tokens per request and step, at least 2.
        device: device of the batches; keep the default for proposers that need the host.
        registry: registry of the parts of a composed proposer; by default the installed plug-ins.
        driver_type: class of the drivers; a subclass of `Driver` may change the batches.
    """

    spec: ProposerSpec
    options: Mapping[str, object] = NO_OPTIONS
    vocab_size: int = 64
    texts: Sequence[Sequence[int]] = DEFAULT_TEXTS
    draft_length: int = 4
    device: str = "cpu"
    registry: Registry | None = None
    driver_type: type[Driver] = Driver

    def driver(self, **changes: Any) -> Driver:
        """Return a driver of a new proposer, large enough for the texts."""
        return self.driver_type(
            self.spec,
            self.options,
            vocab_size=self.vocab_size,
            max_slots=len(self.texts) + 3,
            max_length=max(len(text) for text in self.texts) + self.draft_length + 1,
            max_draft_length=self.draft_length,
            device=self.device,
            registry=self.registry,
            **changes,
        )

    def steps(
        self, driver: Driver, how: Callable[[int], Mapping[str, Any]] = lambda step: NO_OPTIONS
    ) -> Iterator[DraftedStep]:
        """Feed all texts from their first half to their end, one to three tokens per step; yield every step.

        `how` returns arguments of `Driver.step`, by step; the draft length is `draft_length` where it has none.
        """
        rest = self.start_halves(driver)
        for number in itertools.count():
            yield driver.step(**{"draft_length": self.draft_length, **how(number)})
            if not any(rest.values()):
                return
            for index, name in enumerate(self.names):
                count = 1 + (number + index) % 3
                driver.extend(name, rest[name][:count])
                del rest[name][:count]

    def start_halves(self, driver: Driver) -> dict[str, list[int]]:
        """Start a request with the first half of each text, and return the other halves."""
        rest = {}
        for name, text in zip(self.names, self.texts, strict=True):
            half = (len(text) + 1) // 2
            driver.start(name, text[:half])
            rest[name] = list(text[half:])
        return rest

    def each_step(self, **how: Any) -> Iterator[DraftedStep]:
        """Yield the `steps` of a new proposer."""
        with self.driver() as driver:
            yield from self.steps(driver, **how)

    def drafts(
        self, how: Callable[[int], Mapping[str, Any]] = lambda step: NO_OPTIONS, **changes: Any
    ) -> list[dict[str, RowDraft]]:
        """Return the drafts of the `steps` of a new proposer, by request; `changes` are those of `driver`."""
        with self.driver(**changes) as driver:
            return [step.by_request() for step in self.steps(driver, how)]

    @property
    def names(self) -> list[str]:
        """Return the names of the requests with the texts."""
        return [f"text {index}" for index in range(len(self.texts))]

    def assert_same(self, expected: list[dict[str, RowDraft]], found: list[dict[str, RowDraft]], when: str) -> None:
        """Assert that two runs drafted the same, confidences up to rounding."""
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            for name, row in one.items():
                where = f"{when}, for {name!r} at step {number}"
                assert _alike(row, other[name]), f"{self.who} drafts differently {where}: {other[name]} for {row}"

    def compare_with_fresh(
        self, used: Driver, text: Sequence[int], when: str, kind: Lifecycle = Lifecycle.STARTED, **fields: Any
    ) -> None:
        """Assert that for a part of `text`, seen before, `used` drafts the same as a fresh proposer.

        The request begins with an event of `kind`; `fields` are further ones of `Request`.
        """
        with self.driver() as fresh:
            expected = self.drafts_of_part(fresh, text, **fields)
        self.assert_same(expected, self.drafts_of_part(used, text, kind, **fields), when)

    def drafts_of_part(
        self, driver: Driver, text: Sequence[int], kind: Lifecycle = Lifecycle.STARTED, **fields: Any
    ) -> list[dict[str, RowDraft]]:
        """Return the drafts of two steps of a request on a part of `text`."""
        begin = len(text) // 4
        driver.start("new", text[begin : begin + 4], kind=kind, **fields)
        drafts = [driver.step(self.draft_length, order=["new"]).by_request()]
        driver.extend("new", text[begin + 4 : begin + 7])
        return [*drafts, driver.step(self.draft_length, order=["new"]).by_request()]

    @property
    def caps(self) -> ProposerCaps:
        """Return the capabilities that the proposer declares for the device."""
        return self.spec.caps_for(torch.device(self.device).type)

    @property
    def who(self) -> str:
        """Return the proposer's name for messages."""
        return f"proposer {self.spec.name!r}"


def _alike(one: RowDraft, other: RowDraft) -> bool:
    close = all(abs(a - b) <= 1e-5 for a, b in zip(one.confidence, other.confidence, strict=False))
    return close and one._replace(confidence=()) == other._replace(confidence=())
