"""What is replayed, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specplug.replay.items import Ids
from specplug.replay.score import Calibration, Counts
from specplug.settings.model import DEFAULT_SPECULATIVE_TOKENS

Mode = Literal["cold", "serving"]
"""cold: nothing is kept between requests; serving: one after another, all state kept."""

Progress = Callable[[int, int], None]
"""Called with the items done and all items, after each."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is replayed: names and options that a server would be given.

    Attributes:
        proposer, policy: names in the registry; a policy of None is the settings' own default.
        gamma: `num_speculative_tokens`, most draft tokens per request and step.
        options: of plug-ins, by plug-in name, as in `Settings.options`.
        lag: 0, 1 or 2 steps that decisions are late: see `specplug.replay.engine`.
        references: hand the items' documents over as references of their requests.
        corpus: hand the documents of all items over as one corpus before the first, to proposers that hold corpora.
        distractors: further corpora for them, the documents of each; see `specplug.replay.corpora.distractors`.
        trees: the target verifies trees.
        settings: further settings, as `SPECPLUG_CONFIG` takes them.
        fast_path: drafts pass through `specplug.replay.fast_path`, several times faster than the engines' stage,
            and counts the same.
    """

    proposer: str = "ngram"
    policy: str | None = None
    gamma: int = DEFAULT_SPECULATIVE_TOKENS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lag: int = 0
    references: bool = False
    corpus: bool = False
    distractors: Sequence[Sequence[Ids]] = field(default=(), compare=False, repr=False)
    trees: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    fast_path: bool = True

    def as_settings(self) -> dict[str, Any]:
        """Return the layer of settings that this is.  No host proposer has a deadline: counts must not depend on it."""
        named = {} if self.policy is None else {"policy": self.policy}
        own = {"proposer": self.proposer, "num_speculative_tokens": self.gamma, **named}
        faults = {**self.settings.get("faults", {}), "host_deadline_ms": None}
        options = {**self.settings.get("options", {}), **{name: dict(of) for name, of in self.options.items()}}
        return {**self.settings, **own, "faults": faults, "options": options}


@dataclass(slots=True)
class Result:
    """What a replay found.

    Attributes:
        counts: steps by what they verified, accepted and emitted.
        calibration: confidences against what was accepted; empty for foreign objects and trees.
        items: requests replayed.
        seconds: time spent in plan, propose, trim and observe, events included.
        memory: most bytes that the proposer said it holds; None when it does not say.
        faults: what plug-ins did wrong, by plug-in and kind.  Where there is any, the counts are those of the rest.
    """

    counts: Counts = field(default_factory=Counts)
    calibration: Calibration = field(default_factory=Calibration)
    items: int = 0
    seconds: float = 0.0
    memory: int | None = None
    faults: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def microseconds_per_step(self) -> float:
        """Mean time of a step of one request outside the target, in microseconds."""
        return 1e6 * self.seconds / self.counts.steps if self.counts.steps else 0.0
