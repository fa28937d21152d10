"""Cuts in compiled steps: they give what `Draft.keep` gives, and drafts only get shorter, whatever is to be kept."""

from __future__ import annotations

import numba
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import carray

from specplug.match.cpu.intrinsics import int64_at, struct_at, uint8_at
from specplug.match.cpu.records import record
from specplug.pipeline.cpu import kernels, trimming
from specplug.pipeline.cpu.kernels import Columns
from specplug.types.draft import Draft
from specplug.types.host_step import OK, TrimArguments
from specplug.types.paths import ROOT
from tests.trim.tools import bits, random_case

_arguments_at = struct_at(TrimArguments)


@numba.cfunc("int32(int64)")
def planted(arguments):
    """Return the first number at `data`, and write the bytes after it as the mask."""
    n = _arguments_at(arguments)
    plan = carray(int64_at(n.data), 2)
    mask, kept = carray(uint8_at(n.data + 16), plan[1]), carray(uint8_at(n.kept), plan[1])
    for place in range(plan[1]):
        kept[place] = mask[place]
    return plan[0]


def cut(draft: Draft, mask: torch.Tensor) -> Draft:
    """Return what is left of a copy of a draft where a C function writes a mask [B, N] of bytes."""
    rows, draft_length = draft.token_ids.shape
    capacity = rows + 1, draft_length + 3
    columns = Columns.allocate(capacity[0])
    ids, sources, parents = (np.full(capacity, -9, np.int32) for _ in range(3))
    confidence, lengths = np.zeros(capacity, np.float32), np.zeros(capacity[0], np.int32)
    ids[:rows, :draft_length], sources[:rows, :draft_length] = draft.token_ids, draft.source
    confidence[:rows, :draft_length], lengths[:rows] = draft.confidence, draft.lengths
    if draft.parents is None:
        parents = kernels.NO_PARENTS
    else:
        parents[:rows, :draft_length] = draft.parents
    drafts = {"ids": ids, "confidence": confidence, "sources": sources, "parents": parents, "draft_lengths": lengths}
    memory = record(**columns._asdict(), **drafts)
    plan = np.frombuffer(np.array([OK, mask.numel()], np.int64).tobytes() + mask.numpy().tobytes(), np.uint8)
    control = trimming.CutControl(action=trimming.TRIM, function=planted.address, status=-7)
    arguments = TrimArguments(data=plan.ctypes.data)
    cut = record(
        control=control.address,
        arguments=arguments.address,
        workspace=np.zeros(capacity, np.float32),
        kept=np.full(capacity, 9, np.uint8),
        places=np.zeros(capacity[1], np.int32),
    )
    trimming.trim(memory, cut, rows, draft_length)
    assert control.status == OK
    held = Draft(
        *(torch.from_numpy(it) for it in (ids, lengths, confidence, sources, np.zeros(capacity[0], np.int32))),
        parents=None if draft.parents is None else torch.from_numpy(parents),
    )
    return held.view(rows, draft_length)


@settings(max_examples=200, deadline=None)
@given(random=st.randoms(use_true_random=False), trees=st.booleans())
def test_the_tokens_are_those_of_keep_whatever_is_to_be_kept(random, trees):
    """A token stays if its ancestors do, also where a mask makes no sense."""
    draft = random_case(random, trees=trees, least=1).draft
    mask = torch.tensor([random.choice([0, 1, 1, 7, 255]) for _ in range(draft.token_ids.numel())], dtype=torch.uint8)
    mask = mask.view(draft.token_ids.shape)
    found = cut(draft, mask)
    meant = mask != 0
    for row, count in enumerate(draft.lengths.tolist()):
        for place in range(count):  # in order, so that parents come first
            parent = place - 1 if draft.parents is None else int(draft.parents[row, place])
            meant[row, place] &= parent == ROOT or bool(meant[row, parent])
    assert bits(found) == bits(draft.keep(meant))
