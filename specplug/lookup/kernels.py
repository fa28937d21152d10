"""The lookup for GPUs, in Triton: its launches.

A step launches `ingest`, `scan` and `draft` with a program per row, for `scan` also per block of its text.  The work
before and after a step is done by `ingest` and `draft` if they get it as `RowWork`.  Programs count by atomic additions
of whole numbers, and `remember` is one program, so results do not depend on the order of programs.

    kernel_arithmetic   numbers that decide
    memory_kernels      the ring: read, matched, shared by siblings, and `remember`
    scan_kernels        `ingest`, `scan` and learning
    corpus_kernels      `search` of corpora, which only a server that has some launches, and their candidates
    candidate_kernels   candidates of a row
    draft_kernels       `draft` for chains, and `append`
    tree_kernels        `draft` for trees
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specplug.launching import Launcher, RowWork, power_of_two
from specplug.lookup import layout as at
from specplug.lookup import storage
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


def ingest(state: State, texts: Tensor, rows: Rows, source: Source, learns: bool, begin: RowWork | None = None) -> None:
    """Launch; see `plain.ingest`.  If there is work to `begin` with, whose rows these are, do it first."""
    memory = *state[:4], state.chain.shape[2], *state[4:8], state.ring.shape[0]
    of_rows = rows.slots, rows.generations, texts, texts.stride(0), texts.shape[1], rows.lengths
    step = *of_rows, *memory, source.table, source.table.stride(0), *source[1:], int(learns)
    types = rows.generations.dtype, source.rows.dtype
    sizes = {"COLUMNS": _columns(state), "BLOCK": at.BLOCK}
    record, own_types, function, constants = _carried(begin)
    _INGEST(
        (rows.slots.shape[0], 1, 1), *step, record, types=(*types, own_types), **sizes, BEGIN=function, SIZES=constants
    )


def scan(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `plain.scan`."""
    kept = _kept(state)
    grid = rows.slots.shape[0], state.matches.shape[1] // kept, 1
    step = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), state.slots
    types = rows.generations.dtype
    _SCAN(grid, *step, state.matches, state.matches.stride(0), kept, types=types, BLOCK=at.BLOCK)


def search(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `corpus_search.search`."""
    step = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), state.slots, state.scopes, state.corpus
    several = state.corpus_matches.shape[1]
    static = state.segments, state.tenants, state.tenants.shape[0], state.documents, state.corpus_matches, several
    _SEARCH((rows.slots.shape[0], several, 1), *step, *static, types=rows.generations.dtype)


def draft(
    state: State, texts: Tensor, rows: Rows, drafts: Drafts, vocab_size: int, finish: RowWork | None = None
) -> None:
    """Launch; see `plain.draft`.  If there is work to `finish` chains with, do it last."""
    kept = _kept(state)
    static = state.scopes, state.corpus, state.segments, state.tenants, state.tenants.shape[0], state.corpus_matches
    of_row = state.matches.shape[1] // kept, kept, state.figures
    step = *_memory(state, texts, rows), *of_row, *static, state.corpus_matches.shape[1]
    out = drafts.ids, drafts.ids.stride(0), *drafts[1:4]
    bounds = drafts.ids.shape[1], vocab_size
    grid = rows.slots.shape[0], 1, 1
    types = rows.generations.dtype
    if drafts.parents.shape[0]:
        _TREE(grid, *step, state.nodes, *out, drafts.parents, *bounds, types=types, COLUMNS=_columns(state))
    else:
        engine_tokens = storage.engine_tokens_of(state)
        record, own_types, function, constants = _carried(finish)
        more = record, None if finish is None else finish.rows
        sizes = {"COLUMNS": _columns(state), "FINISH": function, "SIZES": constants}
        grid = grid if finish is None else (finish.programs, 1, 1)
        _DRAFT(grid, *step, engine_tokens, *out, *bounds, *more, types=(types, own_types), **sizes)


def append(state: State, texts: Tensor, rows: Rows, engine_ids: Tensor, drafts: Drafts) -> None:
    """Launch; see `plain.append`."""
    of_rows = rows.slots, rows.generations, rows.limits, texts, texts.stride(0), texts.shape[1]
    memory = state.slots, state.counts, state.figures, state.chain.shape[2]
    of_engine = engine_ids, engine_ids.stride(0), engine_ids.shape[1]
    types = rows.generations.dtype, engine_ids.dtype
    own = drafts.confidence, drafts.confidence.stride(0)
    _APPEND((rows.slots.shape[0], 1, 1), *of_rows, *memory, *of_engine, *own, types=types, COLUMNS=_columns(state))


def _carried(work: RowWork | None) -> tuple[Any, Any, Any, Any]:
    """Return the record, the types, the function and the constants of work, None without any."""
    return (None,) * 4 if work is None else (work.record, work.types, work.function, work.sizes)


def _kept(state: State) -> int:
    return at.TREE_MATCHES if state.nodes.shape[0] else 1


def _columns(state: State) -> int:
    """Return the columns of a block of a draft's tokens, a power of two."""
    return power_of_two(state.chain.shape[2])


def _memory(state: State, texts: Tensor, rows: Rows) -> tuple[object, ...]:
    """Return the arguments that are alike in the drafts of chains and of trees."""
    of_rows = rows.slots, rows.generations, rows.limits, texts, texts.stride(0)
    matches = state.matches, state.matches.stride(0)
    return *of_rows, *state[:4], state.chain.shape[2], *state[4:8], state.ring.shape[0], *matches


def remember(state: State, texts: Tensor, *response: int) -> None:
    """Launch; see `plain.remember`."""
    memory = state.slots, *state[4:8], state.ring.shape[0]
    _REMEMBER((1, 1, 1), texts, texts.stride(0), *response, *memory, BLOCK=1024)
