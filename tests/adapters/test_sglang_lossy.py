"""Departures are counted where each version of SGLang takes its kernel from.  Needs no SGLang."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specplug.counts import LossyCounts
from specplug.errors import EngineError
from specplug.metrics import LossyCounter
from specplug_sglang.verification import acceptance

KERNEL = "tree_speculative_sampling_target_only"
PARENTS = ("sglang", "sglang.srt", "sglang.srt.speculative")
VERIFICATION, CUDA, OTHER = (
    "sglang.srt.speculative.eagle_utils",
    "sglang.kernels.ops.speculative.sampling",
    "sgl_kernel",
)


@pytest.fixture
def modules(monkeypatch):
    """An SGLang without the kernel, by the names of its modules."""
    found = {name: ModuleType(name) for name in (*PARENTS, VERIFICATION, CUDA, OTHER)}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(acceptance, "counter", LossyCounter())
    return found


@pytest.mark.parametrize(
    ("home", "device"),
    [(VERIFICATION, "cuda"), (VERIFICATION, "musa"), (CUDA, "cuda"), (OTHER, "musa"), (OTHER, "cpu")],
)
def test_the_kernel_is_counted_where_verification_takes_it_from(home, device, modules):
    """0.5.23 has it in the module of verification; 0.5.22 imports it from another one at each step."""

    def accept_one(accept_token_num: torch.Tensor, **others: object) -> None:
        accept_token_num.fill_(1)

    setattr(modules[home], KERNEL, accept_one)
    for _ in range(2):  # once is enough
        acceptance.count_lossy(SimpleNamespace(device=device))
    given = {
        "target_probs": torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]),
        "candidates": torch.tensor([[0, 1]]),
        "accept_index": torch.tensor([[0, 1]], dtype=torch.int32),
        "accept_token_num": torch.zeros(1, dtype=torch.int32),
    }
    getattr(modules[home], KERNEL)(**given, threshold_single=0.2, threshold_acc=1.0)
    assert acceptance.counter.read() == LossyCounts(accepted=1, departed=0.75)


@pytest.mark.parametrize("has_home", [True, False])
def test_a_lossy_server_is_refused_where_the_kernel_is_missing(has_home, modules, monkeypatch):
    if not has_home:
        monkeypatch.setitem(sys.modules, OTHER, None)  # cannot be imported
    monkeypatch.setattr(acceptance, "resolved_args", lambda server_args: server_args)
    thresholds = {"speculative_accept_threshold_single": 0.5, "speculative_accept_threshold_acc": 1.0}
    with pytest.raises(EngineError, match=f"no {KERNEL}"):
        acceptance.count_lossy(SimpleNamespace(device="xpu", **thresholds))
    acceptance.count_lossy(SimpleNamespace(device="xpu", **dict.fromkeys(thresholds, 1.0)))
    acceptance.count_lossy(SimpleNamespace(device="cpu", **thresholds))
