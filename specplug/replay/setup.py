"""Setup and result of a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specplug.replay.calibration import Calibration
from specplug.replay.items import Ids
from specplug.replay.score import StepCounts
from specplug.settings.model import DEFAULT_SPECULATIVE_TOKENS

Mode = Literal["cold", "serving"]
"""cold: no state is kept between requests; serving: requests run in order and all state is kept."""

Progress = Callable[[int, int], None]
"""Called with the items done and all items, after each."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a replay, in the names and options of a server's settings.

    Attributes:
        proposer, policy: names in the registry; a policy of None is the settings' own default.
        gamma: `num_speculative_tokens`, most draft tokens per request and step.
        options: settings of plug-ins, by plug-in name, as in `Settings.options`.
        references: pass the items' documents as references of their requests.
        corpus: make the documents of all items a corpus, which proposers may draft from.
        distractors: further corpora, the documents of each; see `specplug.replay.corpora.distractors`.
        trees: the target verifies trees.
    """

    proposer: str = "ngram"
    policy: str | None = None
    gamma: int = DEFAULT_SPECULATIVE_TOKENS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    references: bool = False
    corpus: bool = False
    distractors: Sequence[Sequence[Ids]] = field(default=(), compare=False, repr=False)
    trees: bool = False

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.proposer} ({self.policy})"

    def as_settings(self, store: str | None = None) -> dict[str, Any]:
        """Return the setup as a layer of settings, without a deadline, on which counts must not depend.

        Args:
            store: the corpus store to draft from; None: none.
        """
        named = {} if self.policy is None else {"policy": self.policy}
        own = {"proposer": self.proposer, "num_speculative_tokens": self.gamma, **named}
        options = {name: dict(of) for name, of in self.options.items()}
        corpora = {"store": store, "poll_seconds": 3600}
        return {**own, "faults": {"host_deadline_ms": None}, "options": options, "corpora": corpora}


@dataclass(slots=True)
class Result:
    """Result of a replay.

    Attributes:
        counts: steps by the numbers of tokens verified, accepted and emitted.
        calibration: confidences of the tokens whose acceptance was decided: the accepted ones and the first rejected
            one of each draft.  Empty for trees.
        survival: survival probabilities of all tokens whose fate the recorded output shows, also those after a rejected
            one, which are not accepted either.
        items: number of requests replayed.
        seconds: time spent in plan, propose, trim and observe, including events.
        memory: most bytes that the proposer reported to hold; None if it does not report.
        faults: counts of plug-ins' faults, by plug-in and kind.  Faults distort the other counts.
    """

    counts: StepCounts = field(default_factory=StepCounts)
    calibration: Calibration = field(default_factory=Calibration)
    survival: Calibration = field(default_factory=Calibration)
    items: int = 0
    seconds: float = 0.0
    memory: int | None = None
    faults: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def microseconds_per_step(self) -> float:
        """Mean time of a step of one request outside the target, in microseconds."""
        return 1e6 * self.seconds / self.counts.steps if self.counts.steps else 0.0
