"""When `batch` decides anew, and whether making drafts pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specplug.cost.planner import kept_share

DOES_NOT_PAY = "does not pay"
"""`StepPlan.why` of a plan without drafts."""

DECIDE_EVERY = 128
LIKE = 0.1
"""Steps between decisions, fewer at first: an eighth of the steps so far; and the change of a batch that decides."""

TRIAL_STEPS = 5
"""Steps of a draft length that show what it costs; the first ones may still verify drafts of another length."""

AFFORDED = 0.01
"""Share of the time that drafts may take which find out whether they pay again."""

_KNOWN_STEPS = 8.0
_KNOWN_ROWS = 128.0
"""Steps, and rows of all of them together, that have to be known before drafting may stop for the first time."""

_LONGEST_REST = 256
TRIED_STEPS = 4
"""Most steps without drafts where these cost up to a token per row, and the steps in which they are tried then."""

PLAIN_STEPS = 8
"""Steps of the first rest: until plain steps were run in service, it is not known what making drafts costs."""

_REMEMBERED = 8.0
"""Steps that what was known before a rest counts for after it, at most."""

_FIRST_TOKENS = 4.0
_MOST_DOUBT = 3.0
"""Accepted tokens, and cost, that are assumed at first, and the largest factor of costs."""


class Pace:
    """Says at which steps a plan is made anew."""

    def __init__(self) -> None:
        self._step = 0
        self._requests = 0
        self._next = 0

    def is_due(self, step: int, requests: int) -> bool:
        """Return whether to decide at a step."""
        if step < self._next and abs(requests - self._requests) <= LIKE * self._requests:
            return False
        self._step = step
        self._requests = requests
        self.set_next(min(DECIDE_EVERY, max(TRIED_STEPS, step // 8)))
        return True

    def set_soon(self, step: int) -> None:
        """Let the next decision be made a few steps after this one, at the latest."""
        self._next = min(self._next, step + TRIED_STEPS)

    def set_next(self, steps: int) -> None:
        """Let the next decision be made so many steps after the newest one."""
        self._next = self._step + steps


class Trials:
    """Draft lengths to be run for a few steps, where no step was timed at start.

    Without them a length that seems to pay at first would be kept, as nothing would show what the others cost: on
    simulated servers that came to 0.42 of the best length's tokens per second.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def take_length(self, requests: int, lengths: Sequence[int]) -> int | None:
        """Return the first of the lengths that was not run often enough at about this batch size; None if all were."""
        for length in lengths:
            key = requests.bit_length(), length
            if self._counts[key] < TRIAL_STEPS:
                self._counts[key] += 1
                return length
        return None


class Doubt:
    """By how much confidences are too high: what verified drafts cost, relative to what was accepted of them.

    Every token is verified for more than it costs.  Where all together yield less, as on a server whose texts are
    harder than those that confidences were learnt from, all costs are multiplied until they do not.
    """

    def __init__(self) -> None:
        self._earned = self._spent = _FIRST_TOKENS

    def observe(self, requests: int, accepted: float, cost: float, steps: int) -> None:
        """Enter steps: accepted tokens of each row and step, and the cost of its draft tokens, both in tokens."""
        keep = kept_share(requests, steps)
        self._earned = keep * self._earned + (1 - keep) * _FIRST_TOKENS + requests * steps * accepted
        self._spent = keep * self._spent + (1 - keep) * _FIRST_TOKENS + requests * steps * max(0.0, cost)

    @property
    def factor(self) -> float:
        """The factor of all costs, from 1 on."""
        return min(_MOST_DOUBT, max(1.0, self._spent / self._earned))


class DraftingGain:
    """Whether making drafts pays: the tokens that they gained lately, less those that their verification cost.

    Attributes:
        is_resting: whether nothing is drafted, as that does not pay.
    """

    def __init__(self) -> None:
        self._gain = self._steps = 0.0
        self._is_known = self.is_resting = False

    @property
    def gain(self) -> float:
        """Tokens that each row gained per step with drafts, lately."""
        return self._gain / self._steps if self._steps else 0.0

    def observe(self, requests: int, gain: float, steps: int) -> None:
        """Enter steps: the tokens that each row gained per step, less the cost of verification in tokens."""
        keep = kept_share(requests, steps)
        self._gain = self._gain * keep + gain * steps
        self._steps = self._steps * keep + steps

    def plan_rest(self, requests: int, cost: float) -> int:
        """Return for how many steps nothing is to be drafted, where making drafts costs so many tokens per row.

        After a rest drafts are made for a few steps, since only drafts show what they gain.
        """
        self._is_known |= self._steps >= _KNOWN_STEPS and self._steps * requests >= _KNOWN_ROWS
        was_resting = self.is_resting
        self.is_resting = cost > AFFORDED and self._is_known and not was_resting and self.gain < cost
        if not self.is_resting:
            return 0
        shrink = min(1.0, _REMEMBERED / self._steps)
        self._gain *= shrink
        self._steps *= shrink
        return round(min(_LONGEST_REST * max(1.0, cost), TRIED_STEPS * cost / AFFORDED))
