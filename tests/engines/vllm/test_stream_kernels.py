"""The kernels of a step in an engine's stream: equal to their reference in Triton's interpreter, compiled for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.buffers import EngineRows, StepBuffers
from specplug.pipeline.stream.transfers import transfers_for
from tests.engines.gpu_compiler import Launch, compiled
from tests.engines.interpreted import imported_anew
from tests.pipeline.transfers import packed, random_step, unpacked

NAME = "specplug.pipeline.stream.kernels"

CPU = torch.device("cpu")

STEPS = st.randoms(use_true_random=False).map(random_step)

PACK = {
    **dict.fromkeys(("all_token_ids", "lengths", "emitted", "verified", "newest"), "*i32"),
    **dict.fromkeys(("tokens_stride", "window", "packed_count", "lacking_count"), "i32"),
}
UNPACK = {
    **dict.fromkeys(("draft_rows", "draft_lengths", "newest", "ids"), "*i32"),
    **dict.fromkeys(("levels", "confidence"), "*fp32"),
    **dict.fromkeys(("links", "lengths", "parents"), "*i32"),
    **dict.fromkeys(("draft_length", "columns_count", "window", "buffers_stride"), "i32"),
    **dict.fromkeys(("out_stride", "confidence_stride", "lengths_stride", "parents_stride"), "i32"),
}
SGLANG = ("confidence", "links", "parents")
"""What SGLang has none of, for chains."""


@pytest.fixture(scope="module")
def kernels():
    with imported_anew(NAME, interpreted=True) as module:
        yield module


@given(step=STEPS)
@settings(max_examples=60)
def test_the_kernel_packs_what_the_reference_packs(kernels, step):
    assert step.outcome(step.pack, kernels) == packed(step)


@given(step=STEPS)
@settings(max_examples=60)
def test_the_kernel_unpacks_what_the_reference_unpacks(kernels, step):
    assert step.outcome(step.unpack, kernels) == unpacked(step)


def test_slots_beyond_the_range_of_int32_are_found(kernels, tmp_path):
    """The token table is a sparse file of 8 GiB, of which one page is written."""
    slots, most = 3, (1 << 30) + 8
    tokens = torch.from_file(str(tmp_path / "tokens"), shared=True, size=slots * most, dtype=torch.int32)
    tokens = tokens.view(slots, most)
    tokens[2, :3] = torch.tensor([5, 6, 7])
    assert tokens[2].storage_offset() > 1 << 31
    buffers = StepBuffers.allocate(1, 1, 2, pinned=False)
    total_len, one = torch.tensor([0, 0, 3], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    kernels.pack(buffers, 1, EngineRows(torch.tensor([2], dtype=torch.int32), total_len, tokens, one, one))
    assert buffers.newest.tolist() == [[6, 7]]


def test_a_cpu_has_the_kernels_only_in_the_interpreter():
    with imported_anew(NAME, interpreted=True) as kernels:
        assert transfers_for(CPU) is kernels
    with imported_anew(NAME, interpreted=False) as kernels:
        assert transfers_for(CPU) is host_kernels
        assert transfers_for(torch.device("cuda")) is kernels


def test_no_argument_is_specialised_for():
    """A step never waits for a compiler because a view begins elsewhere or a number is 1 or a multiple of 16."""
    with imported_anew(NAME, interpreted=False) as kernels:
        parameters = [*kernels.pack_kernel.params, *kernels.unpack_kernel.params]
    for parameter in parameters:
        is_pointer = not parameter.name.endswith(("_stride", "_count", "window", "draft_length"))
        fixed = parameter.do_not_specialize_on_alignment if is_pointer else parameter.do_not_specialize
        assert fixed or parameter.is_constexpr, parameter.name


def test_the_kernels_compile_for_gpus(tmp_path: Path):
    launches = []
    for dtype, by_row in (("*i32", False), ("*i64", True)):
        types = PACK | dict.fromkeys(("idx_mapping", "total_len", "num_sampled", "num_rejected"), dtype)
        launches.append(Launch(f"{NAME}:pack_kernel", types, {"BY_ROW": by_row, "BLOCK": 128}, num_warps=1))
    for dtype, missing in (("*i32", ()), ("*i64", ("links", "lengths", "parents")), ("*i32", SGLANG)):
        types = {name: kind for name, kind in (UNPACK | {"out": dtype}).items() if name not in missing}
        launches.append(Launch(f"{NAME}:unpack_kernel", types, {"BLOCK": 8} | dict.fromkeys(missing), num_warps=1))
    for launch, found in zip(launches, compiled(launches, tmp_path), strict=True):
        assert ".target sm_90" in found.ptx
        assert f".entry {launch.kernel.partition(':')[2]}(" in found.ptx
        assert found.cubin_bytes > 0
