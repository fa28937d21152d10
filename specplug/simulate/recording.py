"""Recording of trajectories: the real proposer drafts at every position of recorded outputs, one token a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from specplug.plugins.registry import Registry
from specplug.replay.corpora import corpora_of
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import TokenItem
from specplug.replay.run import VOCAB_SIZE, longest
from specplug.replay.score import Offer
from specplug.replay.setup import Setup
from specplug.simulate.matching import match_buckets
from specplug.simulate.trajectories import Array, Trajectories
from specplug.types.draft import Draft


class _Request:
    """A request that is being recorded, and its rows of the arrays."""

    def __init__(self, slot: int, item: TokenItem, start: int) -> None:
        self.slot, self.target, self.start, self.place = slot, item.output, start, 1

    @property
    def is_done(self) -> bool:
        return self.place >= self.target.size


def record(
    items: Sequence[TokenItem],
    setup: Setup,
    *,
    in_flight: int = 32,
    vocab_size: int = VOCAB_SIZE,
    registry: Registry | None = None,
    progress: Callable[[int], None] = lambda requests: None,
) -> Trajectories:
    """Draft at every position of the items' outputs, as `replay` does at the positions of its steps.

    Each step emits one recorded token, so a proposer learns from each draft's first token only, but from all positions.

    Args:
        items: the requests, in order of arrival.
        setup: the proposer; its `gamma` is N, and its policy is not used.
        in_flight: number of requests that run at a time.  The others' responses are in memory if they have finished.
        vocab_size: vocabulary size of the tokenizer.
        registry: registry of plug-ins; by default the installed ones.
        progress: called with the number of requests that have finished since the last call.

    Raises:
        SettingsError, PluginError: the setup names unknown plug-ins, or its options are wrong.
    """
    engine = ReplayEngine(
        replace(setup, policy="fixed", trees=False),
        slots=in_flight,
        max_length=longest(items),
        vocab_size=vocab_size,
        corpora=corpora_of(items, documents=setup.corpus, distractors=setup.distractors),
        registry=registry,
    )
    outputs = np.array([item.output.size for item in items], np.int64)
    starts = np.cumsum(outputs - 1) - (outputs - 1)
    found = _empty(int((outputs - 1).sum()), setup.gamma)
    for item, start in zip(items, starts.tolist(), strict=True):
        buckets = match_buckets(np.concatenate([item.prompt, item.output]))
        count = item.output.size - 1
        found["matches"][start : start + count] = buckets[item.prompt.size + 1 : item.prompt.size + 1 + count]
    sources: tuple[str, ...] = ()
    waiting, free = list(zip(items, starts.tolist(), strict=True))[::-1], list(range(in_flight))[::-1]
    running: list[_Request] = []
    while waiting or running:
        while waiting and free:
            item, start = waiting.pop()
            request = _Request(free.pop(), item, start)
            engine.start(request.slot, item.id, item.prompt, item.documents)
            engine.extend(request.slot, item.output[:1].tolist())
            running.append(request)
        if not any(request.is_done for request in running):
            draft = engine.draft()
            sources = draft.sources
            accepted = _store(found, running, draft)
            following = [[int(request.target[request.place])] for request in running]
            engine.observe([Offer(range(count)) for count in draft.lengths.tolist()], accepted, following)
            for request in running:
                request.place += 1
        for request in [request for request in running if request.is_done]:
            engine.finish(request.slot)
            running.remove(request)
            free.append(request.slot)
            progress(1)
    engine.close()
    names, prompts = np.array([item.id for item in items]), np.array([item.prompt.size for item in items], np.int64)
    return Trajectories(names, prompts, outputs, **found, sources=np.array(sources))


def _empty(positions: int, draft_length: int) -> dict[str, Array]:
    """Return the arrays of so many positions, without drafts."""
    grid = (positions, draft_length)
    counts = {name: np.zeros(positions, np.uint8) for name in ("lengths", "accepted", "matches")}
    return {**counts, "confidence": np.zeros(grid, np.float32), "source": np.full(grid, -1, np.int8)}


def _store(found: dict[str, Array], running: Sequence[_Request], draft: Draft) -> list[int]:
    """Store the drafts of one step; return 1 for each row whose first draft token is right, else 0."""
    ids, lengths = draft.token_ids.numpy(), draft.lengths.numpy()
    size = ids.shape[1]
    target = np.full(ids.shape, -2, np.int32)  # no draft token
    for row, request in enumerate(running):
        rest = request.target[request.place : request.place + size]
        target[row, : rest.size] = rest
    right = np.logical_and.accumulate(ids == target, axis=1).sum(1)
    entries = [request.start + request.place - 1 for request in running]
    found["lengths"][entries], found["accepted"][entries] = lengths, right
    found["confidence"][entries], found["source"][entries] = draft.confidence.numpy(), draft.source.numpy()
    return [int(count) for count in np.minimum(right, 1)]
