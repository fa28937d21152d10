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

from torch import Tensor

from specplug.launching import Launcher
from specplug.lookup import layout as at
from specplug.lookup.corpus_kernels import search_kernel
from specplug.lookup.draft_kernels import append_kernel, draft_kernel
from specplug.lookup.layout import Drafts, Rows, Source, State
from specplug.lookup.memory_kernels import remember_kernel
from specplug.lookup.scan_kernels import ingest_kernel, scan_kernel
from specplug.lookup.tree_kernels import tree_kernel

_INGEST = Launcher(ingest_kernel, num_warps=4)
_SCAN = Launcher(scan_kernel, num_warps=4)
_SEARCH = Launcher(search_kernel, num_warps=4)
_DRAFT = Launcher(draft_kernel, num_warps=1)
_TREE = Launcher(tree_kernel, num_warps=1)
_APPEND = Launcher(append_kernel, num_warps=1)
_REMEMBER = Launcher(remember_kernel, num_warps=8)


def ingest(state: State, texts: Tensor, rows: Rows, source: Source) -> None:
    """Launch; see `plain.ingest`."""
    step = *rows[:3], texts, texts.stride(0), texts.shape[1], state.slots, source.table, source.table.stride(0)
    grid = len(rows.slots), -(-texts.shape[1] // at.BLOCK), 1
    types = rows.generations.dtype, source.rows.dtype
    _INGEST(grid, *step, *source[1:], types=types, BLOCK=at.BLOCK)


def scan(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `plain.scan`."""
    kept = _kept(state)
    grid = len(rows.slots), state.matches.shape[1] // kept, 1
    types = rows.generations.dtype
    _SCAN(grid, *_memory(state, texts, rows), kept, types=types, COLUMNS=_columns(state), BLOCK=at.BLOCK)


def search(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `corpus_search.search`."""
    step = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), state.slots, state.scopes, state.corpus
    several = state.corpus_matches.shape[1]
    static = state.segments, state.tenants, len(state.tenants), state.documents, state.corpus_matches, several
    _SEARCH((len(rows.slots), several, 1), *step, *static, types=rows.generations.dtype)


def draft(state: State, texts: Tensor, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Launch; see `plain.draft`."""
    kept = _kept(state)
    static = state.scopes, state.corpus, state.segments, state.tenants, len(state.tenants), state.corpus_matches
    of_row = state.matches.shape[1] // kept, kept, state.figures
    step = *_memory(state, texts, rows), *of_row, *static, state.corpus_matches.shape[1]
    out = drafts.ids, drafts.ids.stride(0), *drafts[1:4]
    bounds = drafts.ids.shape[1], vocab_size
    grid = len(rows.slots), 1, 1
    types = rows.generations.dtype
    if len(drafts.parents):
        _TREE(grid, *step, state.nodes, *out, drafts.parents, *bounds, types=types, COLUMNS=_columns(state))
    else:
        engine_tokens = at.own_rows(state).shape[1]
        _DRAFT(grid, *step, engine_tokens, *out, *bounds, types=types, COLUMNS=_columns(state))


def append(state: State, texts: Tensor, rows: Rows, engine_ids: Tensor, drafts: Drafts) -> None:
    """Launch; see `plain.append`."""
    of_rows = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), texts.shape[1]
    memory = state.slots, state.counts, state.figures, state.chain.shape[2]
    of_engine = engine_ids, engine_ids.stride(0), engine_ids.shape[1]
    types = rows.generations.dtype, engine_ids.dtype
    own = drafts.confidence, drafts.confidence.stride(0)
    _APPEND((len(rows.slots), 1, 1), *of_rows, *memory, *of_engine, *own, types=types, COLUMNS=_columns(state))


def _kept(state: State) -> int:
    return at.TREE_MATCHES if len(state.nodes) else 1


def _columns(state: State) -> int:
    """Return the columns of a block of a draft's tokens, a power of two."""
    columns: int = 1 << (state.chain.shape[2] - 1).bit_length()
    return columns


def _memory(state: State, texts: Tensor, rows: Rows) -> tuple[object, ...]:
    """Return the arguments that are alike in `scan` and `draft`."""
    slots, generations, _, limits = rows
    of_rows = slots, generations, limits, texts, texts.stride(0)
    matches = state.matches, state.matches.stride(0)
    return *of_rows, *state[:4], state.chain.shape[2], *state[4:8], len(state.ring), *matches


def remember(state: State, texts: Tensor, *response: int) -> None:
    """Launch; see `plain.remember`."""
    memory = state.slots, *state[4:8], len(state.ring), len(state.buckets)
    _REMEMBER((1, 1, 1), texts, texts.stride(0), *response, *memory, BLOCK=1024)
