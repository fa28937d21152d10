"""Matrix of configurations and workloads: the replays that it requires, and their execution in one or more processes.

A replay keeps its state within one workload, so workloads are independent, and the number of processes affects only the
time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from types import MappingProxyType

from specplug.replay.items import Ids, TokenItem
from specplug.replay.setup import Mode, Progress, Result, Setup

Traces = Mapping[str, Sequence[TokenItem]]
"""Tokenised requests by workload."""

Distractors = Mapping[str, Sequence[Sequence[Ids]]]
"""Corpora by workload, the documents of each; see `specplug.replay.corpora.distractors`."""

NO_DISTRACTORS: Distractors = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Contender:
    """One participant of a comparison.

    Attributes:
        label: its name in tables.
        setup: names and options of a proposer and a policy; `gamma` is set for each run.
        peer: path of an external drafter's factory instead, as `load_factory` takes it.  It does not receive the batch
            size.
    """

    label: str
    setup: Setup | None = None
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One configuration over all workloads.

    Attributes:
        contender: the contender to replay.
        mode: "cold" or "serving".
        gamma: most draft tokens per request and step.
        batches: the batch sizes that the run stands for; the first one is reported to the policy.
        in_flight: number of requests that run concurrently, one step each in turn; 1 replays one after another.
    """

    contender: Contender
    mode: Mode
    gamma: int
    batches: tuple[int, ...]
    in_flight: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """A run and its results by workload."""

    run: Run
    results: Mapping[str, Result]


def plan_runs(
    contenders: Iterable[Contender],
    modes: Iterable[Mode],
    batches: Sequence[int],
    gamma: int,
    in_flight: int | None = None,
) -> list[Run]:
    """Return the runs that cover every contender, mode and batch size.

    Args:
        gamma: most draft tokens per request and step, the same in all runs.
        in_flight: adds to serving mode a run with this number of concurrent requests, also reported to the policy, and
            adds the number to the batch sizes, for comparison.
    """
    batches = sorted({*batches} if in_flight is None else {*batches, in_flight})
    runs = []
    for contender in contenders:
        for mode in modes:
            # A peer does not receive the batch size, so one run stands for all of them.
            groups = [(batch,) for batch in batches] if contender.peer is None else [tuple(batches)]
            runs += [Run(contender, mode, gamma, group) for group in groups]
            if in_flight is not None and mode == "serving":
                runs.append(Run(contender, mode, gamma, (in_flight,), in_flight))
    return runs


def execute(
    runs: Sequence[Run],
    traces: Traces,
    *,
    vocab_size: int,
    distractors: Distractors = NO_DISTRACTORS,
    jobs: int = 1,
    advance: Callable[[int], None] = lambda items: None,
) -> list[Found]:
    """Execute the runs; return the results in the order of `runs` and `traces`, for any number of processes.

    Args:
        vocab_size: vocabulary size of the tokenizer that made the traces.
        distractors: corpora to add to proposers that hold corpora, in addition to those of their setup.
        jobs: number of processes; 1 runs in this one.
        advance: called with the number of requests replayed since the last call.
    """
    results: list[dict[str, Result]] = [{} for _ in runs]

    def one(index: int, workload: str, progress: Progress) -> Result:
        return _one(runs[index], traces[workload], vocab_size, distractors.get(workload, ()), progress)

    tasks = [(index, workload) for index in range(len(runs)) for workload in traces]
    if jobs == 1 or len(tasks) == 1:
        for index, workload in tasks:
            results[index][workload] = one(index, workload, lambda done, of: advance(1))
    else:
        context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork
        with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context, initializer=_single_thread) as pool:
            futures = {
                pool.submit(_one, runs[i], traces[w], vocab_size, distractors.get(w, ())): (i, w) for i, w in tasks
            }
            try:
                for future in as_completed(futures):
                    index, workload = futures[future]
                    results[index][workload] = future.result()
                    advance(len(traces[workload]))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [Found(run, {w: found[w] for w in traces}) for run, found in zip(runs, results, strict=True)]


def _single_thread() -> None:
    """Limit each process to one core, since they share the machine."""
    import torch

    torch.set_num_threads(1)


def _one(
    run: Run,
    items: Sequence[TokenItem],
    vocab_size: int,
    distractors: Sequence[Sequence[Ids]] = (),
    progress: Progress | None = None,
) -> Result:
    """Replay one workload."""
    contender = run.contender
    if contender.setup is None:
        from specplug.replay.external import replay_external

        assert contender.peer is not None
        return replay_external(
            items, contender.peer, gamma=run.gamma, mode=run.mode, in_flight=run.in_flight, progress=progress
        )
    setup = replace(contender.setup, gamma=run.gamma, distractors=(*contender.setup.distractors, *distractors))
    if run.in_flight > 1:
        from specplug.replay.interleaved import replay_interleaved

        return replay_interleaved(items, setup, batch=run.in_flight, vocab_size=vocab_size, progress=progress)
    from specplug.replay.run import replay

    return replay(items, setup, mode=run.mode, batch=run.batches[0], vocab_size=vocab_size, progress=progress)
