"""The scan and the suffix decoding of the GPU benchmark: equal to their references in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu import scan, suffix
from tests.benchmarks.suffix_steps import random_run
from tests.engines.interpreted import imported_anew
from tests.pipeline.transfers import view_of

NAME = "benchmarks.gpu.suffix_kernels"
SCAN = "benchmarks.gpu.scan_kernels"


@pytest.mark.parametrize("seed", range(4))
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
    with imported_anew(SCAN, interpreted=True) as scanning, imported_anew(NAME, interpreted=True) as kernels:
        assert kernels.match_kernel is scanning.match_kernel
        kernels.BLOCK = 16  # so that texts have several blocks
        with patch.object(suffix, "operations_for", lambda device: kernels):
            yield kernels


TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=4)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_scan_drafts_what_its_reference_drafts(texts, draft_length, random):
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32)
    table = torch.full((len(texts), int(lengths.max()) + random.randint(0, 3)), -1, dtype=torch.int32)
    for slot, text in enumerate(texts):
        table[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
    order = list(range(len(texts)))
    random.shuffle(order)
    slots = torch.tensor(order)
    expected, found = torch.zeros(2, len(texts), draft_length, dtype=torch.int64)
    scan.draft(slots, lengths, table, expected)
    with imported_anew(SCAN, interpreted=True) as kernels:
        kernels.BLOCK = 16  # so that texts have several blocks
        given = (view_of(random, it) for it in (slots.to(random.choice([torch.int32, torch.int64])), lengths, table))
        kernels.draft(*given, torch.full((len(texts),), 99), found)
    assert torch.equal(found, expected)
