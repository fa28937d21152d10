"""Recording of trajectories: the real proposer drafts at every position of recorded outputs, one token a step."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import specplug
from benchmarks.simulate.trajectories import Array, Trajectories
from specplug.plugins.registry import Registry
from specplug.tools.replay import Item, load_tokenizer, read_traces, tokenize
from specplug.tools.replay.engine import ReplayEngine, Setup
from specplug.tools.replay.items import TokenItem, vocab_size_for
from specplug.tools.replay.run import context_length
from specplug.tools.replay.score import Offer
from specplug.types.step import Draft

SHIPPED = Path(specplug.__file__).parent / "tools" / "replay" / "traces"

LEAST = (1, 2, 3, 4, 5, 6, 7, 11, 21)
"""Shortest match of each of nine buckets, in tokens: those by which vLLM's branch of 2026-09 counts acceptance."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def recorded(
    path: Path | None,
    traces: Sequence[Path] = (),
    *,
    proposer: str = "ngram",
    options: dict[str, Any] | None = None,
    tokenizer: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Trajectories:
    """Read the file of trajectories if it exists, or else record them and write it.

    Args:
        path: the file; None to record and write none.
        traces: files or folders of traces, whose workloads are mixed at random; none: the shipped ones.
        proposer, options: what drafts, and settings of plug-ins.
        tokenizer: as for `specplug replay`.
        limit: most requests of a workload.
        seed: of the mixture.

    Raises:
        SpecplugError: a trace, a name or an option is wrong.
    """
    if path is not None and path.exists():
        return Trajectories.load(path)
    texts: dict[str, list[Item]] = {}
    for folder in traces or [SHIPPED]:
        for workload, read in read_traces(folder).items():
            texts.setdefault(workload, []).extend(read)
    default = "tiny" if importlib.util.find_spec("mistral_common") is None else "tekken"
    loaded = load_tokenizer(tokenizer or default)
    items = [item for read in texts.values() for item in tokenize(read[:limit], loaded)]
    size = vocab_size_for(items, loaded)
    items = [item for item in items if item.output.size > 1]
    random.Random(seed).shuffle(items)
    found = record(items, Setup(proposer, gamma=31, options=options or {}), vocab_size=size)
    if path is not None:
        found.save(path)
    return found


class _Request:
    """A request that is being recorded: its slot, its output, its first entry, and the output tokens known."""

    def __init__(self, slot: int, item: TokenItem, start: int) -> None:
        self.slot, self.target, self.start, self.place = slot, item.output, start, 1

    @property
    def is_done(self) -> bool:
        return self.place >= self.target.size


def record(
    items: Sequence[TokenItem], setup: Setup, *, in_flight: int = 32, vocab_size: int, registry: Registry | None = None
) -> Trajectories:
    """Draft at every position of the items' outputs, as `replay` does at the positions of its steps.

    Each step emits one recorded token, so a proposer learns from each draft's first token only, but from all positions.

    Args:
        items: the requests, in order of arrival.
        setup: the proposer; its `gamma` is N, and its policy is not used.
        in_flight: number of requests that run at a time.  The others' responses are in memory if they have finished.
        vocab_size: vocabulary size of the tokenizer.
        registry: registry of plug-ins; by default the installed ones.
    """
    engine = ReplayEngine(
        replace(setup, policy="fixed"),
        slots=in_flight,
        max_length=context_length(items),
        vocab_size=vocab_size,
        registry=registry,
    )
    outputs = np.array([item.output.size for item in items], np.int64)
    starts = (np.cumsum(outputs - 1) - (outputs - 1)).tolist()
    found = _empty(int((outputs - 1).sum()), setup.gamma)
    sources: tuple[str, ...] = ()
    waiting, free = list(zip(items, starts, strict=True))[::-1], list(range(in_flight))[::-1]
    running: list[_Request] = []
    while waiting or running:
        while waiting and free:
            item, start = waiting.pop()
            request = _Request(free.pop(), item, start)
            engine.start(request.slot, item.id, item.prompt, item.documents)
            engine.extend(request.slot, item.output[:1].tolist())
            running.append(request)
            buckets = match_buckets(np.concatenate([item.prompt, item.output]))
            found["matches"][start : start + item.output.size - 1] = buckets[item.prompt.size + 1 : -1]
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
    engine.close()
    prompts = np.array([item.prompt.size for item in items], np.int64)
    return Trajectories(prompts, outputs, **found, sources=np.array(sources))


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


def match_buckets(text: Array) -> Array:
    """Return [n + 1] uint8: for each length of the text's prefixes, the bucket of the longest match plus 1; 0 for none.

    The longest match at a position is the longest end of the text so far that occurred earlier in the text.  Matches
    are found by hashes of 64 bits, so a wrong one is possible but of no consequence.
    """
    found = np.zeros(text.size + 1, np.uint8)
    for bucket, length in enumerate(LEAST, 1):
        if text.size <= length:
            break
        keys = _hashes(text, length)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        found[length:][first[group] < np.arange(keys.size)] = bucket
    return found


def _hashes(text: Array, length: int) -> Array:
    """Return [n - length + 1] uint64, a polynomial hash of each run of `length` tokens."""
    tokens, count = text.astype(np.uint64), text.size - length + 1
    keys = np.zeros(count, np.uint64)
    for place in range(length):
        keys = keys * _MULTIPLIER + tokens[place : place + count] + np.uint64(1)
    return np.asarray(keys ^ (keys >> np.uint64(29)))
