"""Counts of what speculation did, as read on the host: by source, of lossy verification, and at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import add, sub
from typing import Any

from specplug.errors import ContractError

NO_SOURCE = "none"  # counts rows without a draft although one was planned, and the first token after a prefill
OFF_SOURCE = "off"  # counts rows that could not draft: none was planned, or the request takes none


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts since start-up for one source, of draft tokens unless stated otherwise.

    A tree has node indices in place of positions, and the accepted path is not known, so its first `accepted` nodes are
    counted as the accepted ones.

    Attributes:
        target_steps: rows that emitted tokens for a client, once per row and engine step, counted for the source of
            the row's first token.
        proposed: tokens proposed for verification, after trimming; these are the "drafted" of `acceptance_rate`.
        cut_by_grammar: proposed tokens that a grammar removed before verification.
        emitted: tokens that reach clients, bonus and recovered tokens included, attributed like `target_steps`.
        after_stop: tokens after a stop, which no client sees and `emitted` leaves out, attributed likewise.
        verified_at, tested_at, accepted_at: `verified`, `tested` and `accepted` by position in the draft, up to the
            longest draft.  For trees, only `accepted_at` is meaningful, by depth.
    """

    target_steps: int
    proposed: int
    cut_by_grammar: int
    emitted: int
    after_stop: int
    verified_at: tuple[int, ...]
    tested_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    @property
    def verified(self) -> int:
        """Proposed tokens that went through the target, up to the request's end."""
        return sum(self.verified_at)

    @property
    def tested(self) -> int:
        """Verified tokens that were decided: the accepted ones and the rejected one, but none after it."""
        return sum(self.tested_at)

    @property
    def accepted(self) -> int:
        """Tested tokens that were kept, bonus excluded."""
        return sum(self.accepted_at)

    @property
    def rejected(self) -> int:
        """Draft tokens that the target rejected; at most one per row and step."""
        return self.tested - self.accepted

    @property
    def wasted(self) -> int:
        """Draft tokens that were verified and not accepted."""
        return self.verified - self.accepted

    @property
    def never_verified(self) -> int:
        """Draft tokens that the engine dropped for its own reasons, most often because the request ended first."""
        return self.proposed - self.verified - self.cut_by_grammar

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, i.e. `accepted` / `proposed`; None when nothing was drafted."""
        return _ratio(self.accepted, self.proposed)

    @property
    def verified_acceptance_rate(self) -> float | None:
        """Accepted / verified, which excludes tokens that never reached the target; None when nothing was verified."""
        return _ratio(self.accepted, self.verified)

    @property
    def acceptance_by_position(self) -> tuple[float | None, ...]:
        """Accepted / tested at each position: the rate at which a token is kept if the tokens before it were."""
        return tuple(map(_ratio, self.accepted_at, self.tested_at))

    @property
    def tau(self) -> float | None:
        """Mean acceptance length: emitted / target steps, bonus included; None before the first step."""
        return _ratio(self.emitted, self.target_steps)

    def as_dict(self) -> dict[str, Any]:
        """Return counts and ratios, ready for JSON."""
        named = {name: getattr(self, name) for name in (*_COUNTS, *_DERIVED)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}

    def __add__(self, other: SourceCounts) -> SourceCounts:
        return self._with(other, add)

    def __sub__(self, other: SourceCounts) -> SourceCounts:
        return self._with(other, sub)

    def _with(self, other: SourceCounts, join: Callable[[int, int], int]) -> SourceCounts:
        """Join two counts field by field."""
        joined: dict[str, Any] = {}
        for name in _COUNTS:
            pair = getattr(self, name), getattr(other, name)
            joined[name] = tuple(map(join, *pair)) if name in POSITION_COUNTS else join(*pair)
        return SourceCounts(**joined)


_COUNTS = tuple(f.name for f in fields(SourceCounts))
_DERIVED = tuple(name for name, value in vars(SourceCounts).items() if isinstance(value, property))
ROW_COUNTS = ("target_steps", "emitted", "after_stop")
"""The counts of `SourceCounts` that rows have; the others are of tokens."""

POSITION_COUNTS = tuple(name for name in _COUNTS if name.endswith("_at"))
"""Those by position."""


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class LossyCounts:
    """Counts since start-up for lossy verification.

    `departed` is the expected number of accepted tokens that lossless verification would have rejected.
    """

    accepted: int = 0
    departed: float = 0.0

    @property
    def departure_rate(self) -> float | None:
        """Departed / accepted; None when nothing was accepted."""
        return _ratio(self.departed, self.accepted)

    def as_dict(self) -> dict[str, Any]:
        """Return counts and rate, ready for JSON."""
        return {"accepted": self.accepted, "departed": self.departed, "departure_rate": self.departure_rate}

    def __sub__(self, other: LossyCounts) -> LossyCounts:
        return LossyCounts(self.accepted - other.accepted, self.departed - other.departed)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The counts at one moment, on the host.  Subtract an earlier snapshot to get the counts in between.

    Attributes:
        by_source: counts per source; rows without a draft are counted under `NO_SOURCE`, or under `OFF_SOURCE`, which
            is there if there were some, if they could not draft.
        faults: for each plug-in, the number of times that it "raised", was "malformed" or "late", was "switched off"
            or "came back".
        lossy: counts of the rows that a lossy verifier decided.
    """

    by_source: Mapping[str, SourceCounts]
    faults: Mapping[str, Mapping[str, int]]
    lossy: LossyCounts = field(default_factory=LossyCounts)

    @property
    def total(self) -> SourceCounts:
        """The sum over all sources, including rows without a draft."""
        first, *others = self.by_source.values()
        return sum(others, first)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        return {
            "total": self.total.as_dict(),
            "by_source": {source: counts.as_dict() for source, counts in self.by_source.items()},
            "faults": {name: dict(kinds) for name, kinds in self.faults.items()},
            "lossy": self.lossy.as_dict(),
        }

    def __sub__(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        before = earlier.by_source.keys()
        now = self.by_source.keys()
        if not before <= now <= before | {OFF_SOURCE}:
            raise ContractError.build(
                "snapshots of different metrics",
                who="MetricsSnapshot",
                found=f"sources {list(earlier.by_source)}",
                expected=f"sources {list(self.by_source)}",
            )
        faults = {name: Counter(kinds) - Counter(earlier.faults.get(name, {})) for name, kinds in self.faults.items()}
        return MetricsSnapshot(
            by_source={
                source: counts - earlier.by_source[source] if source in earlier.by_source else counts
                for source, counts in self.by_source.items()
            },
            faults={name: dict(kinds) for name, kinds in faults.items() if kinds},
            lossy=self.lossy - earlier.lossy,
        )
