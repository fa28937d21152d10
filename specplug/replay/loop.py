"""Replay loop: assign slots, propose, compare with the recorded output, observe, finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

from specplug.replay.items import Ids, TokenItem
from specplug.replay.setup import Progress, Result


class Offer(NamedTuple):
    """Draft of one request that is verified at one step.

    Attributes:
        token_ids: draft tokens; for a tree its nodes, parents before their children.
        confidence: one per token, or empty if unknown.
        parents: for a tree, each node's parent, -1 for those that follow the context.
        padding: number of further tokens that the target processes and never accepts.
    """

    token_ids: Sequence[int]
    confidence: Sequence[float] = ()
    parents: Sequence[int] | None = None
    padding: int = 0

    @property
    def verified(self) -> int:
        """Return the number of tokens that the target processes for the draft."""
        return len(self.token_ids) + self.padding

    def accepted(self, target: Sequence[int]) -> int:
        """Return the number of draft tokens that match the target's next tokens; for a tree, along its best path."""
        if self.parents is not None:
            return _deepest(self.token_ids, self.parents, target)
        count = 0
        for drafted, emitted_tokens in zip(self.token_ids, target, strict=False):
            if drafted != emitted_tokens:
                break
            count += 1
        return count


def _deepest(token_ids: Sequence[int], parents: Sequence[int], target: Sequence[int]) -> int:
    depths = {-1: 0}
    best, stop = 0, len(target)
    for node, (drafted, parent) in enumerate(zip(token_ids, parents, strict=True)):
        depth = depths.get(parent, stop)
        if depth < stop and target[depth] == drafted:
            depths[node] = depth + 1
            best = max(best, depth + 1)
    return best


class Replayed(Protocol):
    """Interface that the loop drives: specplug's pipeline, or an external drafter.  Rows are in order of arrival.

    Attributes:
        seconds: time spent in the measured code.
        faults: counts of plug-ins' faults, by plug-in and kind.
    """

    seconds: float

    @property
    def faults(self) -> dict[str, dict[str, int]]: ...

    def reset(self) -> None:
        """Drop all state."""

    def start(self, slot: int, request_id: str, prompt: Ids, documents: Sequence[Ids]) -> None:
        """Assign a free slot to a request, as the last row."""

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append the tokens that prefill emitted."""

    def propose(self) -> list[Offer]:
        """Return the drafts to verify, one per running request."""

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Append the target's tokens."""

    def finish(self, slot: int) -> None:
        """End a request."""

    def memory(self) -> int | None:
        """Return the bytes held, or None if unknown."""

    def close(self) -> None:
        """Release everything."""


class _Running:
    """A request with its recorded output, and the number of tokens emitted so far."""

    __slots__ = ("place", "slot", "target")

    def __init__(self, slot: int, target: list[int]) -> None:
        self.slot, self.target, self.place = slot, target, 1  # the first token comes from prefill

    @property
    def done(self) -> bool:
        return self.place >= len(self.target)


def drive(
    engine: Replayed, items: Sequence[TokenItem], *, slots: int = 1, cold: bool = False, progress: Progress | None
) -> Result:
    """Replay items in order, at most `slots` at a time; `cold` (with one slot) resets the engine before each."""
    result = Result()
    waiting = iter(items)
    running: list[_Running] = []
    free = list(range(slots))[::-1]
    while True:
        for item in _take(waiting, len(free)):
            if cold and result.items:
                engine.reset()
            running.append(_start(engine, item, free.pop()))
        if not running:
            break
        if not any(request.done for request in running):
            _step(engine, running, result, together=slots > 1)
        for request in [request for request in running if request.done]:
            held = engine.memory()
            result.memory = max(held, result.memory or 0) if held else result.memory
            engine.finish(request.slot)
            running.remove(request)
            free.append(request.slot)
            result.items += 1
            if progress is not None:
                progress(result.items, len(items))
    engine.close()
    result.seconds, result.faults = engine.seconds, engine.faults
    return result


def _take(waiting: Iterator[TokenItem], count: int) -> Iterator[TokenItem]:
    for _ in range(count):
        item = next(waiting, None)
        if item is None:
            return
        yield item


def _start(engine: Replayed, item: TokenItem, slot: int) -> _Running:
    request = _Running(slot, item.output.tolist())
    engine.start(slot, item.id, item.prompt, item.documents)
    engine.extend(slot, request.target[:1])
    return request


def _step(engine: Replayed, running: Sequence[_Running], result: Result, *, together: bool) -> None:
    """Verify one step of all running requests against their recorded outputs."""
    offers = engine.propose()
    accepted, emitted = [], []
    for request, offer in zip(running, offers, strict=True):
        window = request.target[request.place : request.place + len(offer.token_ids) + 1]
        count = offer.accepted(window)
        emitted_tokens = window[: count + 1]
        request.place += len(emitted_tokens)
        accepted.append(count)
        emitted.append(emitted_tokens)
        result.counts.histogram[offer.verified, count, len(emitted_tokens)] += 1
        if offer.confidence and offer.parents is None:
            _count_outcomes(result, offer.confidence, count, len(emitted_tokens))
    if together:
        whole = len(running), sum(offer.verified for offer in offers), sum(map(len, emitted))
        result.counts.batches[whole] += 1
    engine.observe(offers, accepted, emitted)


def _count_outcomes(result: Result, confidence: Sequence[float], accepted: int, emitted: int) -> None:
    """Count a chain's tokens by confidence and survival, of which `accepted` were accepted, before `emitted` came."""
    # The first rejected token is decided, too, unless the output ended before it.
    result.calibration.add(confidence[:emitted], accepted)
    known = len(confidence) if emitted > accepted else accepted
    result.survival.add(list(accumulate(confidence[:known], mul)), accepted)


def longest(items: Sequence[TokenItem]) -> int:
    """Return a context length that holds every item, in whole thousands."""
    most = max((item.prompt.size + item.output.size for item in items), default=0)
    return int(-(-(most + 1) // 1024) * 1024)
