"""Triton kernels compile for GPUs ahead of time, and no step waits for a compiler; nothing here runs on a GPU.

`test_launches` has those of the lookup's plain step, and those around it, whose arguments are records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from specplug.steps import trim as survival
from specplug.steps.device_steps import launches_for
from tests.engines.gpu_compiler import H100, Launch, assert_assembly, compiled
from tests.engines.interpreted import imported_anew

DEVICE = "specplug.steps.kernels.launches"
TRIM, SGLANG = "specplug.steps.kernels.trim_kernel", "specplug_sglang.verification.kernels"
OF_LOOKUP: dict[str, dict[str, dict[str, Any]]] = {
    "corpus": {"search": {}},
    "draft": {"append": {"COLUMNS": 16}},
    "tree": {"tree": {"COLUMNS": 16}},
}
"""Kernels of the lookup by module, and the constants of each; a step without a corpus or trees launches the others."""
LOOKUP = {
    name: f"specplug.lookup.{name}_kernels" for name in ("memory", "scan", "corpus", "candidate", "draft", "tree")
}
MODULES = [TRIM, SGLANG, "specplug.lookup.kernel_arithmetic", *LOOKUP.values()]


def typed(**names: str) -> dict[str, str]:
    """Return the type of each argument, of types with names between spaces."""
    return {name: kind.replace("p_", "*") for kind, several in names.items() for name in several.split()}


VERIFICATION = typed(
    p_i32="ids lengths table places counts",
    p_i64="slots before nodes cached",
    i32="ids_stride table_stride places_stride nodes_stride n_count",
)
APPEND = typed(
    p_i32="predict accept_index accept_lens table emitted last",
    p_i64="slots before new_seq_lens",
    i32="table_stride table_columns_count n_count",
)
TRIMMED = typed(
    p_i32="ids sources lengths scratch out_ids out_sources out_lengths",
    p_fp32="confidence out_confidence",
    p_i64="token_budget costs",
    i32="ids_stride confidence_stride sources_stride out_stride batch_size draft_length last_cost",
)


LOOKUP_TENSORS = typed(
    p_i32="generations lengths limits texts facts chain voted counts ring owners buckets ring_end figures sources "
    "draft_lengths ids parents nodes table firsts num_new engine_ids scopes corpus tenants documents",
    p_i64="slots matches table_rows segments corpus_matches",
    p_fp32="confidences",
)
"""Of the other arguments each is a number of 32 bits."""


def lookup_launches() -> Iterator[Launch]:
    warps = {"append": 1, "tree": 1}
    for module, kernels in OF_LOOKUP.items():
        for name, own in kernels.items():
            names = import_module(LOOKUP[module]).__dict__[f"{name}_kernel"].arg_names
            types = {it: LOOKUP_TENSORS.get(it, "i32") for it in names if it not in own}
            yield Launch(f"{LOOKUP[module]}:{name}_kernel", types, own, warps.get(name, 4))


def launches() -> Iterator[Launch]:
    """Yield each way in which each kernel is launched."""
    yield from lookup_launches()
    yield Launch(f"{TRIM}:trim_kernel", TRIMMED, {"LEVELS": 4096, "BLOCK": 1024}, 8)
    yield Launch(f"{SGLANG}:verification_kernel", VERIFICATION, {"BLOCK": 16}, 1)
    yield Launch(f"{SGLANG}:append_kernel", APPEND, {"BLOCK": 16}, 1)
    yield Launch(f"{SGLANG}:append_kernel", APPEND | {"accept_lens": "*i64"}, {"BLOCK": 16}, 1)


@pytest.fixture(scope="module")
def launched() -> Iterator[list[Launch]]:
    with ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(imported_anew(name, interpreted=False))
        yield list(launches())


@pytest.mark.parametrize("capability", [80, pytest.param(H100, marks=pytest.mark.slow)])
def test_the_kernels_compile_for_gpus(launched: list[Launch], capability: int, tmp_path: Path):
    for launch, found in zip(launched, compiled(launched, tmp_path, capability), strict=True):
        assert_assembly(launch.kernel.partition(":")[2], found.ptx, capability)
        assert found.cubin_bytes > 0


def test_no_argument_is_specialised_for(launched: list[Launch]):
    """A step never waits for a compiler because a view begins elsewhere or a number is 1 or a multiple of 16."""
    own: dict[str, dict[str, str]] = {}
    for launch in launched:
        own[launch.kernel] = {**own.get(launch.kernel, {}), **launch.types}
    for path, types in own.items():
        module, _, name = path.partition(":")
        for parameter in getattr(import_module(module), name).params if path.startswith("specplug") else ():
            is_pointer = types.get(parameter.name, "").startswith("*")
            fixed = parameter.do_not_specialize_on_alignment if is_pointer else parameter.do_not_specialize
            assert fixed or parameter.is_constexpr, (path, parameter.name)


CHOICES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    DEVICE: (launches_for, None),
    TRIM: (survival._kernels_for, None),
}
"""By module of kernels how it is chosen for a device, and what else is."""


@pytest.mark.parametrize("name", CHOICES)
def test_a_cpu_has_the_kernels_only_in_the_interpreter(name: str):
    choose, otherwise = CHOICES[name]
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    with imported_anew(name, interpreted=True):
        assert choose(cpu) is not otherwise
    with imported_anew(name, interpreted=False):
        assert choose(cpu) is otherwise
        assert choose(cuda) is not otherwise
