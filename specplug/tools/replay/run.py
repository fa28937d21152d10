"""Replay of recorded items: one configuration over one workload, or several over all, in one or more processes."""

from __future__ import annotations

import multiprocessing
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Literal

import numpy as np

from specplug.plugins.registry import Registry
from specplug.tools.replay.engine import ReplayEngine, Setup
from specplug.tools.replay.items import Ids, TokenItem, corpora_of, temporary_store
from specplug.tools.replay.score import Result

Mode = Literal["cold", "serving"]
"""cold: no state is kept between requests; serving: requests run in order and all state is kept."""

Traces = Mapping[str, Sequence[TokenItem]]
"""Tokenised requests by workload."""

Distractors = Mapping[str, Sequence[Sequence[Ids]]]
"""Corpora by workload, the documents of each; see `specplug.tools.replay.items.distractor_corpora`."""

VOCAB_SIZE = 1 << 20
"""Vocabulary size to assume if none is given; larger than any tokenizer's."""


class SimulatedDrafter:
    """The engine's own drafter, such as an EAGLE head: it drafts G tokens for an item's output.

    The token at position j is right with the probability `rates[j]` if those before it are.

    Draws depend on the item's id, the place in its output and the position, so that what else drafts changes none of
    them.  They do not depend on the text: a model's own errors are where the text is hard, and so are lookup's.
    """

    def __init__(self, item: TokenItem, rates: Sequence[float]) -> None:
        seed = np.random.default_rng(zlib.crc32(item.id.encode()))
        self._output = item.output.tolist()
        self._right = seed.random((len(self._output), len(rates))) < rates

    def draft(self, place: int) -> list[int]:
        """Return the draft [G] that follows the first `place` tokens of the output; after its end, tokens are wrong."""
        drafted = []
        for position, is_right in enumerate(self._right[place].tolist()):
            token = self._output[min(place + position, len(self._output) - 1)]
            is_right = is_right and place + position < len(self._output)
            drafted.append(token if is_right else token - 1 if token else 1)
        return drafted


def replay(
    items: Sequence[TokenItem],
    setup: Setup = Setup(),  # noqa: B008 - frozen
    *,
    mode: Mode = "serving",
    batch: int = 1,
    vocab_size: int = VOCAB_SIZE,
    registry: Registry | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Result:
    """Replay items one after another; each stands for `batch` identical requests, and `advance` is called after each.

    The mode "cold" keeps nothing between requests and rebuilds proposer and policy for each; "serving" keeps all state.
    Without a registry, the plug-ins are the installed ones.
    """
    result = Result()
    with temporary_store(corpora_of(items, documents=setup.corpus, distractors=setup.distractors)) as store:
        engine = ReplayEngine(
            setup,
            max_length=context_length(items),
            vocab_size=vocab_size,
            repeats=batch,
            store=store,
            registry=registry,
        )
        for item in items:
            if mode == "cold" and result.items:
                engine.reset()
            _replay_item(engine, item, result, SimulatedDrafter(item, setup.engine_rates))
            result.items += 1
            advance()
        engine.close()
    result.seconds = engine.seconds
    result.faults = engine.faults
    return result


def _replay_item(engine: ReplayEngine, item: TokenItem, result: Result, drafter: SimulatedDrafter) -> None:
    """Propose, compare with the recorded output and observe, until the output ends."""
    # the first token comes from prefill
    target = item.output.tolist()
    place = 1
    decided: list[tuple[Sequence[float], int, int]] = []
    engine.start(0, item.id, item.prompt, item.documents)
    engine.extend(0, target[:1])
    while place < len(target):
        engine_ids = drafter.draft(place)
        (offer,) = engine.propose([engine_ids] if engine_ids else ())
        window = target[place : place + len(offer.token_ids) + 1]
        count = offer.accepted(window)
        emitted = window[: count + 1]
        place += len(emitted)
        result.counts.histogram[len(offer.token_ids), count, len(emitted)] += 1
        if offer.confidence and offer.parents is None:
            decided.append((offer.confidence, count, len(emitted)))
        engine.observe([offer], [count], [emitted])
    held = engine.memory()
    result.memory = max(held, result.memory or 0) if held else result.memory
    engine.finish(0)
    _count_outcomes(result, decided)


def _count_outcomes(result: Result, drafts: Iterable[tuple[Sequence[float], int, int]]) -> None:
    """Count the tokens of chains by confidence and by survival, given the tokens accepted and emitted of each."""
    confidences = []
    survivals = []
    for confidence, accepted, emitted in drafts:
        # The first rejected token is decided, too, unless the output ended before it.
        confidences += [(stated, place < accepted) for place, stated in enumerate(confidence[:emitted])]
        known = confidence if emitted > accepted else confidence[:accepted]
        survivals += [(product, place < accepted) for place, product in enumerate(accumulate(known, mul))]
    result.calibration.add(confidences)
    result.survival.add(survivals)


def context_length(items: Sequence[TokenItem]) -> int:
    """Return a context length that holds every item, in whole thousands."""
    most = max((item.prompt.size + item.output.size for item in items), default=0)
    return int(-(-(most + 1) // 1024) * 1024)


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One configuration over all workloads, with the batch size that the policy sees; results are by workload."""

    setup: Setup
    mode: Mode
    batch: int
    results: Mapping[str, Result] = field(default_factory=dict)


def execute(
    runs: Sequence[ReplayRun],
    traces: Traces,
    *,
    vocab_size: int,
    distractors: Distractors = MappingProxyType({}),
    jobs: int = 1,
    advance: Callable[[int], None] = lambda items: None,
) -> list[ReplayRun]:
    """Execute the runs; return them with their results, in order, the same for any number of processes.

    State is kept within one workload, so that workloads are independent.

    The `distractors` are corpora in addition to those of the setup.  With one job, all run in this process.  `advance`
    is called with the number of requests replayed since the last call.
    """
    tasks = [(run, workload) for run in runs for workload in traces]
    arguments = zip(*[(run, traces[name], vocab_size, distractors.get(name, ())) for run, name in tasks], strict=True)
    if jobs == 1 or len(tasks) == 1:
        found = list(map(partial(_replay_workload, advance=partial(advance, 1)), *arguments))
    else:
        found = []
        context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork
        with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context, initializer=_use_one_core) as pool:
            for (_, workload), result in zip(tasks, pool.map(_replay_workload, *arguments), strict=True):
                found.append(result)
                advance(len(traces[workload]))
    results = iter(found)
    return [replace(run, results={workload: next(results) for workload in traces}) for run in runs]


def _use_one_core() -> None:
    """Limit a process to one core, since several share the machine."""
    import torch

    torch.set_num_threads(1)


def _replay_workload(
    run: ReplayRun,
    items: Sequence[TokenItem],
    vocab_size: int,
    distractors: Sequence[Sequence[Ids]],
    advance: Callable[[], None] = lambda: None,
) -> Result:
    setup = replace(run.setup, distractors=(*run.setup.distractors, *distractors))
    return replay(items, setup, mode=run.mode, batch=run.batch, vocab_size=vocab_size, advance=advance)
