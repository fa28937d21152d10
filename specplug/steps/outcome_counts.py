"""Counts of the drafts of an engine's own drafter, taken on the host from the engine's counts per request and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from specplug.counts import NO_SOURCE, OFF_SOURCE, MetricsSnapshot, SourceCounts
from specplug.steps.step_planner import DraftResult


class OutcomeCounts:
    """Counts verified, accepted and emitted tokens of chains.

    Recording a step costs one dictionary entry per request; positions are counted when a snapshot is taken.

    Args:
        source: name of the drafter in metrics.
        max_draft_length: number of positions that are counted separately; longer drafts are cut to it.
    """

    def __init__(self, source: str, max_draft_length: int) -> None:
        self._source = source
        self._positions = max_draft_length
        self._outcomes: Counter[tuple[int, int]] = Counter()  # number of rows by (verified, accepted)
        self._plain_rows = self._plain_tokens = self._off = 0

    def record(self, results: Sequence[DraftResult], rows: int, emitted: int, off: int = 0) -> None:
        """Count one step.

        Args:
            results: the outcome of each draft that the step verified.
            rows: number of requests that emitted tokens, those with drafts included.
            emitted: number of tokens that they emitted.
            off: number of the requests that could not draft, each of which emitted one token.
        """
        self._outcomes.update([(verified, accepted) for _, verified, accepted in results])
        self._off += off
        self._plain_rows += rows - len(results) - off
        self._plain_tokens += emitted - sum([accepted + 1 for _, _, accepted in results]) - off

    def snapshot(self, faults: Mapping[str, Mapping[str, int]]) -> MetricsSnapshot:
        """Return the counts so far, with the faults that others counted; see `MetricsSnapshot`."""
        verified, tested, accepted = ([0] * self._positions for _ in range(3))
        for (length, kept), count in self._outcomes.items():
            for at, ends in ((verified, length), (tested, min(kept + 1, length)), (accepted, kept)):
                for place in range(min(ends, self._positions)):
                    at[place] += count
        rows = sum(self._outcomes.values())
        drafted = _counts(rows, rows + sum(accepted), verified, tested, accepted)
        none = [0] * self._positions
        plain = _counts(self._plain_rows, self._plain_tokens, none, none, none)
        by_source = {self._source: drafted, NO_SOURCE: plain}
        if self._off:
            by_source[OFF_SOURCE] = _counts(self._off, self._off, none, none, none)
        return MetricsSnapshot(by_source, faults)


def _counts(
    rows: int, emitted: int, verified: Sequence[int], tested: Sequence[int], accepted: Sequence[int]
) -> SourceCounts:
    return SourceCounts(
        target_steps=rows,
        proposed=sum(verified),
        cut_by_grammar=0,
        emitted=emitted,
        after_stop=0,
        verified_at=tuple(verified),
        tested_at=tuple(tested),
        accepted_at=tuple(accepted),
    )
