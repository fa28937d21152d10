"""The lookup for GPUs, in Triton: its launches.

A step launches `ingest` and `scan`, each of a program per row and block of its text, and `draft`, of a program per row.
The first block of a row learns, and all programs count by atomic additions of whole numbers; `remember` is one program.
So results do not depend on the order of programs.  No argument is specialised for.

    kernel_arithmetic   numbers that decide
    memory_kernels      the ring: read, matched, shared by siblings, and `remember`
    scan_kernels        `ingest`, `scan` and learning
    corpus_kernels      `search` of corpora, which only a server that has some launches, and their candidates
    draft_kernels       candidates, and `draft` for chains
    tree_kernels        `draft` for trees
"""

from __future__ import annotations

import triton
from torch import Tensor

from specplug.lookup import layout as at
from specplug.lookup.corpus_kernels import search_kernel
from specplug.lookup.draft_kernels import draft_kernel
from specplug.lookup.layout import Drafts, Rows, Source, State
from specplug.lookup.memory_kernels import remember_kernel
from specplug.lookup.scan_kernels import ingest_kernel, scan_kernel
from specplug.lookup.tree_kernels import tree_kernel


def ingest(state: State, texts: Tensor, rows: Rows, source: Source) -> None:
    """Launch; see `plain.ingest`."""
    step = *rows, texts, texts.stride(0), texts.shape[1], state.slots, source.table, source.table.stride(0)
    more = *source[1:], source.engine_ids.shape[1], state.chain.shape[2]
    grid = (len(rows.slots), triton.cdiv(texts.shape[1], at.BLOCK))
    columns = triton.next_power_of_2(state.chain.shape[2])
    ingest_kernel[grid](*step, *more, COLUMNS=columns, BLOCK=at.BLOCK, num_warps=4)


def scan(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `plain.scan`."""
    kept = _kept(state)
    grid = (len(rows.slots), state.matches.shape[1] // kept)
    columns = triton.next_power_of_2(state.chain.shape[2])
    scan_kernel[grid](*_memory(state, texts, rows), kept, COLUMNS=columns, BLOCK=at.BLOCK, num_warps=4)


def search(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `corpus_search.search`."""
    step = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), state.slots, state.scopes, state.corpus
    several = state.corpus_matches.shape[1]
    static = state.segments, state.tenants, len(state.tenants), state.documents, state.corpus_matches, several
    search_kernel[(len(rows.slots), several)](*step, *static, num_warps=4)


def draft(state: State, texts: Tensor, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Launch; see `plain.draft`."""
    kept = _kept(state)
    static = state.scopes, state.corpus, state.segments, state.tenants, len(state.tenants), state.corpus_matches
    of_row = state.matches.shape[1] // kept, kept, state.figures
    step = *_memory(state, texts, rows), *of_row, *static, state.corpus_matches.shape[1]
    out = drafts.ids, drafts.ids.stride(0), *drafts[1:4]
    bounds = drafts.ids.shape[1], vocab_size
    grid = (len(rows.slots),)
    columns = triton.next_power_of_2(state.chain.shape[2])
    if len(drafts.parents):
        tree_kernel[grid](*step, state.nodes, *out, drafts.parents, *bounds, COLUMNS=columns, num_warps=1)
    else:
        engine_tokens = at.own_rows(state).shape[1]
        draft_kernel[grid](*step, engine_tokens, *out, *bounds, COLUMNS=columns, num_warps=1)


def _kept(state: State) -> int:
    return at.TREE_MATCHES if len(state.nodes) else 1


def _memory(state: State, texts: Tensor, rows: Rows) -> tuple[object, ...]:
    """Return the arguments that are alike in `scan` and `draft`."""
    slots, generations, _, limits = rows
    of_rows = slots, generations, limits, texts, texts.stride(0)
    matches = state.matches, state.matches.stride(0)
    return *of_rows, *state[:4], state.chain.shape[2], *state[4:8], len(state.ring), *matches


def remember(state: State, texts: Tensor, *response: int) -> None:
    """Launch; see `plain.remember`."""
    launch = remember_kernel[(1,)]
    memory = state.slots, *state[4:8], len(state.ring), len(state.buckets)
    launch(texts, texts.stride(0), *response, *memory, BLOCK=1024, num_warps=8)
