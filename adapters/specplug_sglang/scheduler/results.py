"""A worker's steps whose results have not arrived, and those whose results wait until their ends are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from specplug.runtime.draft_report import DraftReport
from specplug.runtime.step_planner import DraftResult, Launched, until_stop


class LaunchedStep(NamedTuple):
    """A launched step of the planner whose results have not arrived.

    Attributes:
        result: SGLang's, which is on the host once the results have arrived; None without drafts.
        report: of its drafts, to be read once the results have arrived.
    """

    launched: Launched
    reqs: tuple[Any, ...]
    result: Any
    report: DraftReport


class VerifiedStep(NamedTuple):
    """A step whose accepted counts are known, until SGLang has found which requests it ended, and where.

    Attributes:
        ended: when its results arrived, in seconds.
        reqs: the requests that had not ended before the step, beyond which SGLang may have let them run.
        before, verified, accepted: of each, output tokens before the step, and verified and accepted draft tokens.
        report: of the step's drafts.
    """

    launched: Launched
    ended: float
    reqs: Sequence[Any]
    before: Sequence[int]
    verified: Sequence[int]
    accepted: Sequence[int]
    report: DraftReport

    @classmethod
    def of(cls, step: LaunchedStep, accepted: Sequence[int], ended: float) -> VerifiedStep:
        """Note the numbers of a step's draft tokens by row: accepted, and verified by SGLang's `cap_lens`."""
        reqs: Sequence[Any] = step.reqs
        verified = [count - 1 for count in step.result.cap_lens.tolist()]
        runs = [not req.finished() for req in reqs]
        if not all(runs):
            reqs, verified, accepted = (list(compress(column, runs)) for column in (reqs, verified, accepted))
        before = [len(req.output_ids) for req in reqs]
        return cls(step.launched, ended, reqs, before, verified, accepted, step.report)

    def received(self) -> list[int]:
        """Return how many tokens of the step each request's client receives, once the ends are known."""
        return [
            max(len(req.output_ids_through_stop) - before, 0) if req.finished() else accepted + 1
            for req, before, accepted in zip(self.reqs, self.before, self.accepted, strict=True)
        ]

    def draft_results(self, received: Sequence[int]) -> list[DraftResult]:
        """Return the results of the requests' drafts up to their ends."""
        results = list(zip([req.rid for req in self.reqs], self.verified, self.accepted, strict=True))
        for row, (count, accepted) in enumerate(zip(received, self.accepted, strict=True)):
            if count <= accepted:
                results[row] = until_stop(results[row], max(count, 1))
        return results
