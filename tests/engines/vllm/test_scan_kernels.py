"""The scan that the GPU benchmark compares with: equal to its reference in Triton's interpreter, compiled for GPUs."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu import scan
from tests.engines.gpu_compiler import Launch, compiled
from tests.engines.interpreted import imported_anew
from tests.pipeline.transfers import view_of

NAME = "benchmarks.gpu.scan_kernels"

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=4)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_kernels_draft_what_the_reference_drafts(texts, draft_length, random):
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32)
    table = torch.full((len(texts), int(lengths.max()) + random.randint(0, 3)), -1, dtype=torch.int32)
    for slot, text in enumerate(texts):
        table[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
    order = list(range(len(texts)))
    random.shuffle(order)
    slots = torch.tensor(order)
    expected, found = torch.zeros(2, len(texts), draft_length, dtype=torch.int64)
    scan.draft(slots, lengths, table, expected)
    with imported_anew(NAME, interpreted=True) as kernels:
        kernels.BLOCK = 16  # so that texts have several blocks
        given = (view_of(random, it) for it in (slots.to(random.choice([torch.int32, torch.int64])), lengths, table))
        kernels.draft(*given, torch.full((len(texts),), 99), found)
    assert torch.equal(found, expected)


def test_the_kernels_compile_for_gpus(tmp_path: Path):
    types = {"slots": "*i64", **dict.fromkeys(("lengths", "texts"), "*i32"), "texts_stride": "i32", "best": "*i64"}
    limits = {"SHORTEST": scan.SHORTEST, "LONGEST": scan.LONGEST, "BLOCK": 2048}
    more = {"out": "*i64", "out_stride": "i32", "draft_length": "i32"}
    match, copy = compiled(
        [Launch(f"{NAME}:match_kernel", types, limits), Launch(f"{NAME}:copy_kernel", types | more, {"BLOCK": 16})],
        tmp_path,
    )
    assert "atom.global" in match.ptx
    assert copy.cubin_bytes > 0
