"""Threads share a batch without a trace in its result, end when they should, and are not missed where they are gone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu import parallel
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from specplug.types.draft import Draft
from specplug.types.host_step import StepArguments
from tests.match.driver import Client, Talk

SLOTS, CAPACITY = 150, 200
OPTIONS = [
    LookupSettings(max_n=64, memory_tokens=1024),
    LookupSettings(max_n=3, min_survival=1e-5, memory_tokens=256),
    LookupSettings(min_n=2, max_n=5, min_survival=0.05, memory_tokens=0),
]


def arguments_of(draft: Draft, **columns: torch.Tensor) -> StepArguments:
    """Return the arguments of a step that writes a draft; `columns`: further tensors, by their names."""
    return StepArguments(
        batch_size=draft.batch_size,
        ids=draft.token_ids.data_ptr(),
        confidence=draft.confidence.data_ptr(),
        draft_stride=draft.token_ids.stride(0),
        draft_lengths=draft.lengths.data_ptr(),
        sources=draft.source.data_ptr(),
        parents=0 if draft.parents is None else draft.parents.data_ptr(),
        **{name: tensor.data_ptr() for name, tensor in columns.items()},
    )


def on_threads(threads: int, options: LookupSettings, draft_length: int, *, trees: bool) -> Client:
    """Return a `Lookup` on some number of threads."""
    lookup = Lookup(SLOTS, CAPACITY, draft_length, options, trees=trees, threads=threads)
    return Client(lookup, draft_length, trees)


def bits(draft: Draft) -> list[bytes]:
    """Return all that a draft holds."""
    tensors = (draft.token_ids, draft.confidence, draft.lengths, draft.source, draft.parents)
    return [tensor.numpy().tobytes() for tensor in tensors if tensor is not None]


@numba.njit  # type: ignore[untyped-decorator]
def arrays_of(rows: Any) -> Any:
    """Return the arrays of `Rows`; kernels alone see what is in such a record."""
    return (
        (rows.owners, rows.hit_rate, rows.tenants, rows.named, rows.anchors, rows.ages, rows.bounds, rows.points),
        (rows.drafted_for, rows.num_considered, rows.tokens, rows.parents),
        (rows.evidence, rows.contexts, rows.token_keys),
        (rows.num_candidate_votes, rows.candidate_vote_tokens, rows.candidate_vote_keys),
    )


def memory(lookup: Lookup) -> list[bytes]:
    """Return all that a lookup knows from one step to the next."""
    texts, tables = lookup.texts, lookup.tables
    arrays = [texts.text, texts.lengths, texts.places, texts.match_lengths, texts.candidates, texts._children,
              texts._heads, texts._trees, *tables.arrays]  # fmt: skip
    rows = [array for group in arrays_of(lookup.rows.record) for array in group]
    return [array.tobytes() for array in arrays + rows]


def begin(talk: Talk, lookups: list[Lookup], slot: int) -> None:
    """Begin a request with all."""
    owner, references, tenant, corpora = talk.owner(), talk.references(), talk.tenant(), talk.corpora()
    for lookup in lookups:
        arrays = [np.array(it, np.int32) for it in references]
        lookup.start(slot, owner=owner, references=arrays, tenant=tenant, corpora=corpora)
    talk.length[slot] = 0


@pytest.mark.parametrize("trees", [False, True])
@given(seed=st.integers(0, 2**32), options=st.sampled_from(OPTIONS), draft_length=st.sampled_from([1, 4, 16]))
@settings(max_examples=12)
def test_any_number_of_threads_gives_the_same_bits(
    trees: bool, seed: int, options: LookupSettings, draft_length: int
) -> None:
    talk = Talk(seed, SLOTS, CAPACITY)
    players = [on_threads(threads, options, draft_length, trees=trees) for threads in (1, 2, 3, 5)]
    lookups = [player.lookup for player in players]
    for slot in range(SLOTS):
        begin(talk, lookups, slot)
    shared = 0
    for step in range(8):
        if step % 4 == 1:
            segments = talk.segments(options.max_n)
            for lookup in lookups:
                lookup.load(segments)
        slots, new, lengths, limits = talk.batch()
        shared += len(slots) >= parallel.FEWEST_ROWS
        drafts = [bits(player.step(slots, new, lengths, limits)) for player in players]
        assert drafts == [drafts[0]] * len(players)
        ended = talk.rng.randrange(SLOTS)
        for lookup in lookups:
            lookup.remember(ended, "a", 0, talk.length[ended])
        begin(talk, lookups, ended)
    known = [memory(lookup) for lookup in lookups]
    assert known == [known[0]] * len(players)
    assert [len(lookup.pool.started) for lookup in lookups] == ([0, 1, 2, 4] if shared else [0] * 4)
    for lookup in lookups:
        lookup.close()
        assert lookup.pool.started == []


def players(*threads: int, trees: bool = False) -> tuple[Talk, list[Client]]:
    """Return lookups on these numbers of threads after one large step."""
    talk, found = Talk(5, SLOTS, CAPACITY), [on_threads(n, OPTIONS[0], 4, trees=trees) for n in threads]
    for slot in range(SLOTS):
        begin(talk, [player.lookup for player in found], slot)
    step(talk, found)
    return talk, found


def step(talk: Talk, found: list[Client]) -> list[list[bytes]]:
    """Run a step of all slots; return the drafts."""
    new = [talk.lines() for _ in range(SLOTS)]
    for slot, tokens in enumerate(new):
        talk.length[slot] += len(tokens)
    return [bits(player.step(list(range(SLOTS)), new, list(talk.length), [4] * SLOTS)) for player in found]


def test_threads_start_with_a_large_batch_and_end_with_the_lookup_which_drafts_on_without_them() -> None:
    few = on_threads(4, OPTIONS[0], 4, trees=False)
    few.fill(list(range(parallel.FEWEST_ROWS - 1)), [4] * (parallel.FEWEST_ROWS - 1))
    assert few.lookup.pool.started == []
    talk, (plain, closed, forgotten) = players(1, 3, 2)
    threads = [*closed.lookup.pool.started, *forgotten.lookup.pool.started]
    assert [thread.is_alive() for thread in threads] == [True] * 3
    closed.lookup.close()
    closed.lookup.close()
    first, second = step(talk, [plain, closed])
    assert first == second
    assert closed.lookup.pool.started == []
    del forgotten
    gc.collect()
    assert [thread.is_alive() for thread in threads] == [False] * 3


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


LACKS: dict[str, tuple[str, Any]] = {
    "threads": ("threading.Thread.start", refuse),
    "semaphores": ("specplug.match.cpu.locks.ctypes.CDLL", lambda _: object()),
}


@pytest.mark.parametrize("lacks", LACKS)
def test_it_does_without_threads_or_semaphores(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(*LACKS[lacks])
        talk, (plain, shared) = players(1, 3)
    assert shared.lookup.pool.threads == 1
    first, second = step(talk, [plain, shared])
    assert first == second


ENDINGS = {"sys.exit(3)": 3, "del shared": 0}
"""How a process ends, and its exit code."""

PROCESSES = """
import os, sys, warnings
from tests.match.test_threads import ENDINGS, players, step
warnings.simplefilter("ignore", DeprecationWarning)
players(1)  # loads the kernels, on no other thread
ended = []
for ending in ENDINGS:
    child = os.fork()  # before there is a thread, so that it ends as a process of its own would
    if not child:
        break
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(ended)
    sys.exit()
talk, (plain, shared) = players(1, 3)
forked = os.fork()  # it starts threads of its own
first, second = step(talk, [plain, shared])
assert first == second
assert len(shared.lookup.pool.started) == 2
assert all(thread.is_alive() for thread in shared.lookup.pool.started)
if forked:
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == ENDINGS[ending]
print("idle", flush=True)
exec(ending)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_end_while_threads_are_idle_and_forked_ones_start_their_own() -> None:
    command = [sys.executable, "-c", PROCESSES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    expected = ["idle"] * 2 * len(ENDINGS) + [str(list(ENDINGS.values()))]
    assert done.stdout.splitlines() == expected, done.stderr
