"""Suffix decoding, which the GPU benchmark times: equal to its reference in the interpreter, compiled for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

from benchmarks.gpu import suffix
from tests.benchmarks.suffix_steps import random_run
from tests.engines.gpu_compiler import Launch, compiled
from tests.engines.interpreted import imported_anew

NAME = "benchmarks.gpu.suffix_kernels"
SCAN = "benchmarks.gpu.scan_kernels"


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 10 else ()) for seed in range(24)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernels_draft_what_the_reference_drafts(seed: int):
    expected = random_run(Random(seed), torch.device("cpu"))
    with interpreted():
        found = random_run(Random(seed), torch.device("cpu"))
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), (number, name, one[name], other[name])


@contextmanager
def interpreted() -> Iterator[ModuleType]:
    """Let the kernels, interpreted, do what the reference does."""
    with imported_anew(SCAN, interpreted=True) as scan, imported_anew(NAME, interpreted=True) as kernels:
        assert kernels.match_kernel is scan.match_kernel
        kernels.BLOCK = 16  # so that texts have several blocks
        with patch.object(suffix, "operations_for", lambda device: kernels):
            yield kernels


def test_the_kernels_compile_for_gpus(tmp_path: Path):
    rows = {"slots": "*i64", **dict.fromkeys(("lengths", "texts"), "*i32"), "texts_stride": "i32", "best": "*i64"}
    corpus = {"ring": "*i32", "tables": "*i64", "buckets": "i32"}
    counted = {**dict.fromkeys(("last", "counts"), "*i32"), "draft_length": "i32"}
    outputs = {"out": "*i64", "out_stride": "i32", "confidence": "*fp32", "confidence_stride": "i32"}
    entered = {"response": "*i32", **dict.fromkeys(("length", "head", "number"), "i32")}
    verdict = {"slots": "*i64", "num_sampled": "*i32", "best": "*i64"}
    limits = {"SHORTEST": 1, "LONGEST": suffix.LONGEST, "BLOCK": 2048}
    match, enter, learn, draft = compiled(
        [
            Launch(f"{SCAN}:match_kernel", rows, limits),
            Launch(f"{NAME}:enter_kernel", entered | corpus, {"BLOCK": 256}),
            Launch(f"{NAME}:learn_kernel", verdict | counted, {"BLOCK": 16}, num_warps=1),
            Launch(f"{NAME}:draft_kernel", rows | corpus | {"capacity": "i32"} | counted | outputs, {"BLOCK": 16}, 1),
        ],
        tmp_path,
    )
    assert "atom.global" in match.ptx
    assert "max.s64" in enter.ptx
    assert "add" in learn.ptx
    assert "div.rn.f32" in draft.ptx
    assert "div.full" not in draft.ptx
