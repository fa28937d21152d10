"""Unsettled: a verified step until SGLang has found which requests it ended, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from specplug.runtime.step_planner import Fate, Launched, until_stop


class _Row(NamedTuple):
    """A request, its output tokens before the step, and its verified and accepted draft tokens."""

    req: Any
    before: int
    verified: int
    accepted: int


class Unsettled(NamedTuple):
    """A step whose accepted counts are known.  SGLang tells them before it looks for stops in the step's tokens.

    Attributes:
        launched: what the planner knows of it.
        ended: when its results arrived, in seconds.
        rows: the requests that had not ended before the step.
        late: those that could not draft, see `StepPlanner.finish`.
    """

    launched: Launched
    ended: float
    rows: tuple[_Row, ...]
    late: tuple[str, ...]

    @classmethod
    def of(
        cls,
        launched: Launched,
        ended: float,
        reqs: Iterable[Any],
        verified: Iterable[int],
        accepted: Iterable[int],
        late: Iterable[str] = (),
    ) -> Unsettled:
        """Note the step's requests, which SGLang may have let run a step beyond their end."""
        rows = zip(reqs, verified, accepted, strict=True)
        running = [_Row(row[0], len(row[0].output_ids), *row[1:]) for row in rows if not row[0].finished()]
        return cls(launched, ended, tuple(running), tuple(late))

    def received(self) -> list[int]:
        """Return how many tokens of the step each request's client receives, once the ends are known."""
        return [
            max(len(row.req.output_ids_through_stop) - row.before, 0) if row.req.finished() else row.accepted + 1
            for row in self.rows
        ]

    def fates(self, received: Iterable[int]) -> list[Fate]:
        """Return the fates of the requests' drafts up to their ends."""
        return [
            until_stop((row.req.rid, row.verified, row.accepted), max(count, 1))
            for row, count in zip(self.rows, received, strict=True)
        ]
