"""Several tensors cross between a device and the host in one copy, unchanged."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.types.tensors import to_device, to_host
from tests.pipeline.test_handles import work
from tests.pipeline.tools import Recorder, host_handle

DTYPES = (torch.int64, torch.int32, torch.float32, torch.bool)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1))
def test_copies_are_equal_and_independent(kinds):
    draw = torch.Generator().manual_seed(0)
    tensors = []
    for dtype, rows, columns, transposed in kinds:
        values = torch.randint(-(1 << 40) if dtype is torch.int64 else 0, 1 << 20, (rows, columns), generator=draw)
        tensors.append(
            (values % 2 == 1 if dtype is torch.bool else values.to(dtype)).T if transposed else values.to(dtype)
        )
    for copies in (to_host(tensors), to_device(tensors, torch.device("cpu"))):
        for copy, tensor in zip(copies, tensors, strict=True):
            assert copy.dtype is tensor.dtype
            assert torch.equal(copy, tensor)
            assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_one_row_of_a_strided_column():
    columns = [torch.arange(26, dtype=dtype).reshape(2, 13)[:1, 3] for dtype in DTYPES[:3]]
    assert [copy.tolist() for copy in to_host(columns)] == [[3]] * 3


def test_a_host_proposer_waits_for_the_device_once_a_step(monkeypatch):
    """At steps that bring it no more tokens than a step can emit; a prompt takes a second copy."""
    transfers = []

    def counting(tensors):
        transfers.append(len(tensors))
        return to_host(tensors)

    monkeypatch.setattr("specplug.types.batch.to_host", counting)
    proposer = Recorder(needs_host=True, incremental=True)
    handle = host_handle(proposer)
    handle.step(*work([1, 2, 3], [4, 5, 6, 7], num_new=[1, 2]))
    assert proposer.handed == [{(0, 0): [3], (1, 0): [6, 7]}]
    assert len(transfers) == 1
