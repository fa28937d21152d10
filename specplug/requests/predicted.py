"""How much of a request's prediction (OpenAI's field) its completion contains, for `usage`.

Token counts per request: `accepted_prediction_tokens` appeared in the completion, `rejected_prediction_tokens` did not.
They are counted in the process that serves HTTP from the two texts, so they are the same on every engine, and whether
or not a draft token came from the prediction; what drafting gained is in the counts by source (docs/metrics.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.requests import wire

NAME = "prediction"
"""Name of the reference that a prediction becomes."""

_RUN = 3
"""Tokens that a completion must share with a prediction in a row to continue in it after a difference."""

_current: ContextVar[Predicted | None] = ContextVar("specplug_predicted", default=None)


class _Runs:
    """Where runs of `size` tokens end in a prediction, sorted by the run, so that no answer scans the prediction."""

    def __init__(self, prediction: npt.NDArray[np.int32], size: int) -> None:
        self._ids, numbers = np.unique(prediction, return_inverse=True)
        keys = np.zeros(len(prediction) - size + 1, np.int64)
        for place in range(size):
            keys = keys * len(self._ids) + numbers[place : place + len(keys)]
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self.ends = order + size - 1

    def find(self, run: Iterable[int]) -> tuple[int, int]:
        """Return begin and end of the slice of `ends` that belongs to a run; (0, 0) if the prediction lacks it."""
        key = 0
        for token in run:
            number = int(np.searchsorted(self._ids, token))
            if number == len(self._ids) or self._ids[number] != token:
                return 0, 0
            key = key * len(self._ids) + number
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        return int(begin), int(end)


class _Followed:
    """Tokens of a prediction that one completion has repeated."""

    def __init__(self, prediction: npt.NDArray[np.int32], runs: Callable[[], _Runs]) -> None:
        self._prediction = prediction
        self._runs = runs
        self._seen = np.zeros(len(prediction), np.bool_)
        self._newest: deque[int] = deque(maxlen=min(_RUN, len(prediction)))
        self._next = 0  # the place after the last token that was followed; -1 after a difference
        self._num_unmatched = 0  # newest tokens that are not counted
        self._unseen: dict[int, int] = {}  # by the begin of a run's part: the first place that may not be seen yet
        self.count = 0

    def extend(self, token_ids: Iterable[int]) -> None:
        """Take in further tokens of the completion."""
        for token in token_ids:
            self._newest.append(token)
            place = self._next
            if 0 <= place < len(self._prediction) and self._prediction[place] == token:
                self._seen[place] = True
            else:
                place = self._found()
                self._num_unmatched = min(self._num_unmatched + 1, len(self._newest))
                self._seen[max(0, place + 1 - self._num_unmatched) : place + 1] = True
            if place >= 0:
                self._num_unmatched = 0
            self._next = place + 1 if place >= 0 else -1
        self.count = int(np.count_nonzero(self._seen))

    def _found(self) -> int:
        """Return the place of the newest token in the first run like the newest tokens not yet seen, or -1."""
        if not self._newest or len(self._newest) < (self._newest.maxlen or 0):
            return -1
        runs = self._runs()
        begin, end = runs.find(self._newest)
        place = self._unseen.get(begin, begin)
        while place < end and self._seen[runs.ends[place]]:
            place += 1
        self._unseen[begin] = place
        return int(runs.ends[place]) if place < end else -1


class Predicted:
    """The prediction of one HTTP request and the completions of it, one for each prompt and sample."""

    def __init__(self) -> None:
        self._prediction: npt.NDArray[np.int32] | None = None
        self._sorted: _Runs | None = None
        self._completions: dict[Hashable, _Followed] = {}

    def read(self, extra_args: Mapping[str, Any] | None) -> None:
        """Take the prediction from parsed arguments, if they hold one."""
        if self._prediction is None and extra_args and wire.is_encoded(extra_args):
            _, references, _ = wire.decode(extra_args)
            if references and references[0].name == NAME:
                self._prediction = references[0].token_ids

    def extend(self, completion: Hashable, token_ids: Iterable[int]) -> None:
        """Take in further tokens of a completion; without a prediction, do nothing."""
        if self._prediction is not None:
            if completion not in self._completions:
                self._completions[completion] = _Followed(self._prediction, self._runs)
            self._completions[completion].extend(token_ids)

    def _runs(self) -> _Runs:
        """Return the runs of the prediction, sorted at the first completion that departs from it."""
        assert self._prediction is not None
        if self._sorted is None:
            self._sorted = _Runs(self._prediction, min(_RUN, len(self._prediction)))
        return self._sorted

    def details(self) -> dict[str, int]:
        """Return the fields of `usage.completion_tokens_details`; none without a prediction."""
        if self._prediction is None:
            return {}
        accepted = sum(each.count for each in self._completions.values())
        total = max(1, len(self._completions)) * len(self._prediction)
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": total - accepted}


def begin() -> Predicted:
    """Begin to count for the HTTP request that is being served."""
    predicted = Predicted()
    _current.set(predicted)
    return predicted


def current_prediction() -> Predicted | None:
    """Return what `begin` began for the HTTP request that is being served, or None."""
    return _current.get()
