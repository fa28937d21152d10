"""Steps that are timed before a server's first request: their sizes, their order, and what is kept of their times.

An adapter runs the steps, whole ones of its engine.  The most useful sizes come first, as the time is limited: those of
one request, then steps without and with drafts of further batch sizes, on a coarse grid and then on a finer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import ceil, inf
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from specplug.types.step import StepCost

REPEATS = 2
"""Timed steps of a size; one more runs before them, in which the engine may compile or load a kernel."""

_SLOW = 1 / 64
"""Share of the limit from which on a step is slow: after the first size, such sizes are run twice and the faster run
counts, so that the limit reaches more sizes."""

BUSY = 0.2
"""Relative difference of the repeats of a size, in the median, from which on something else keeps the machine busy."""

_DOUBT = 0.1
"""Relative excess of a size over a larger one from which on it is timed again."""

_STALL = 9.0
"""The same that no kernel explains, be it in a graph or not."""


class StepLimits(NamedTuple):
    """The steps that an engine can run.

    Attributes:
        requests: the most requests of a step.
        tokens: the most tokens of a step.
        draft_lengths: numbers of draft tokens that a request can have, ascending.
        pads: whether all requests of a step have as many draft tokens.
        graph_sizes: tokens of the steps that have a graph, ascending; others run as the next larger one.
    """

    requests: int
    tokens: int
    draft_lengths: Sequence[int]
    pads: bool = False
    graph_sizes: Sequence[int] = ()


class StepSize(NamedTuple):
    """A step of so many decoding requests, which verify so many draft tokens together."""

    requests: int
    draft_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens that the target runs."""
        return self.requests + self.draft_tokens

    @property
    def lengths(self) -> list[int]:
        """Draft tokens of each request, which differ by at most one."""
        each, longer = divmod(self.draft_tokens, self.requests)
        return [each + (row < longer) for row in range(self.requests)]


class Measurement(NamedTuple):
    """Costs of the steps that were timed, and whether their repeats agree; see `BUSY`."""

    costs: tuple[StepCost, ...]
    is_steady: bool


def step_sizes(limits: StepLimits) -> list[StepSize]:
    """Return the sizes to be timed, the most useful ones first."""
    first = [requests for requests in (8, 32, 128) if requests < limits.requests]
    batches = [requests for requests in (2, 4, 16, 64, 256, 512) if requests < limits.requests]
    if limits.requests > 1:
        first.insert(0, limits.requests)
    grids = (  # numbers of requests, and numbers of tokens per request
        ([1], (1, 2, 4, 8)),
        (first, (1, 2)),
        ([1], (16, 3, 6, 12, 24, 32, 48, 64)),
        (first, (1.25, 4)),
        (batches, (1, 2)),
        ([*first, *batches], (1.5, 3, 8, 16)),
    )
    wanted = [_runnable(each, ratio, limits) for requests, ratios in grids for each in requests for ratio in ratios]
    return [size for size in dict.fromkeys(chain(*wanted)) if size.tokens <= limits.tokens]


def _runnable(requests: int, tokens_per_row: float, limits: StepLimits) -> list[StepSize]:
    """Return the size that the engine runs for one that is wanted, and its neighbour if a graph ends there."""
    longest = limits.draft_lengths[-1]
    if limits.pads:
        length = min((each for each in limits.draft_lengths if each >= ceil(tokens_per_row) - 1), default=longest)
        return [StepSize(requests, requests * length)]
    most = requests * (1 + longest)
    tokens = min(round(requests * tokens_per_row), most)
    graph = next((size for size in limits.graph_sizes if size >= tokens), None)
    found = [tokens] if graph is None else [graph, graph + 1]
    return [StepSize(requests, each - requests) for each in found if each <= most]


def measure(
    run: Callable[[StepSize, int], Sequence[StepCost]],
    sizes: Iterable[StepSize],
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> Measurement:
    """Time steps for at most about so many seconds; sizes that would probably take longer are left out.

    A size that took longer than a larger one is timed once more at once: the first steps of a server may be slow.
    Sizes whose repeats differ, or that have none, are timed once more at the end, if there is time.

    Args:
        run: runs so many steps of a size in a row and returns their costs; none if the engine does not run the size.
        sizes: the sizes to be timed, in order.
        seconds: the limit on all steps together.
        clock: the present time in seconds.
    """
    end = clock() + seconds
    costs: dict[StepSize, StepCost] = {}
    spreads: dict[StepSize, float] = {}

    def take(size: StepSize) -> None:
        step = _expected(size.tokens, costs.values())
        is_slow = step > seconds * _SLOW
        count = 2 if is_slow else 1 + REPEATS
        if clock() + step * count > end:
            return
        if repeats := run(size, count)[0 if is_slow else 1 :]:
            is_repeated = size in costs or not is_slow
            repeats = [*repeats, *([costs[size]] if size in costs else [])]
            costs[size] = min(repeats, key=lambda cost: cost.seconds)
            if is_repeated:
                spreads[size] = max(cost.seconds for cost in repeats) / costs[size].seconds - 1.0

    doubted: set[StepSize] = set()
    for size in sizes:
        take(size)
        slower = {each for each in costs if size in costs and _contradict(costs[each], costs[size], _DOUBT)}
        for smaller in sorted(slower - doubted):
            take(smaller)
        doubted |= slower
    for size in [size for size in costs if spreads.get(size, inf) > BUSY]:
        take(size)
    found = tuple(costs.values())
    has_stalled = any(_contradict(one, other, _STALL) for one in found for other in found)
    return Measurement(found, bool(spreads) and median(spreads.values()) <= BUSY and not has_stalled)


def _contradict(smaller: StepCost, larger: StepCost, excess: float) -> bool:
    """Return whether a step took longer than one of more tokens and no fewer requests, by more than `excess` of it."""
    is_smaller = smaller.tokens < larger.tokens and smaller.requests <= larger.requests
    return is_smaller and smaller.seconds > larger.seconds * (1 + excess)


def _expected(tokens: int, costs: Iterable[StepCost]) -> float:
    """Return the seconds of a step by those that were timed, 0 without any.

    They are linear between the sizes and up to twice the largest one; of a far larger step they are in proportion.
    """
    known = sorted((cost.tokens, cost.seconds) for cost in costs)
    if not known:
        return 0.0
    sizes, seconds = map(np.array, zip(*known, strict=True))
    first = sizes[0]
    last = sizes[-1]
    if tokens <= last:
        return float(np.interp(tokens, sizes, seconds))
    if first == last or tokens > 2 * last:
        return float(seconds[-1] * tokens / last)
    return float(seconds[-1] + max(0.0, seconds[-1] - seconds[0]) / (last - first) * (tokens - last))
