"""A step of the lookup on a GPU: what it launches, through Triton's own launcher over a driver that does nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from typing import Any

import pytest

from tests.engines.gpu_compiler import H100, assert_assembly
from tests.engines.launch import PYTHON, ROOT
from tests.engines.launches import most

OF_A_STEP = {"ingest_kernel", "scan_kernel", "draft_kernel"}


def launched(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, "-m", "benchmarks.launches", "--json", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return launched("--rows", "1", "3")


def test_a_step_launches_three_kernels(found: dict[str, Any]) -> None:
    launches = {step["rows"]: step["launches"] for step in found["steps"]}
    assert launches == {1: len(OF_A_STEP), 3: len(OF_A_STEP)}
    assert most("V2", "`ngram`") == len(OF_A_STEP)


def test_a_step_of_sglang_launches_two_more_to_verify() -> None:
    (step,) = launched("--rows", "3", "--engine", "sglang")["steps"]
    before, after = most("SGLang", "`ngram`", "before"), most("SGLang", "after")
    assert (before, after) == (len(OF_A_STEP) + 1, 1)
    assert step["launches"] == before + after


def test_kernels_have_one_variant_for_all_batches(found: dict[str, Any]) -> None:
    """Those that begin and finish a step are also compiled without this."""
    variants = Counter((it["name"], it["does_more"]) for it in found["kernels"])
    assert {name for name, _ in variants} >= {*OF_A_STEP, "begin_kernel", "finish_kernel", "remember_kernel"}
    assert {name for name, does_more in variants if does_more} == {"ingest_kernel", "draft_kernel"}
    assert max(variants.values()) == 1


def test_no_argument_is_specialised_for(found: dict[str, Any]) -> None:
    """A step never waits for a compiler because a view begins elsewhere or a number is 1 or a multiple of 16."""
    assert {it["name"]: it["specialised"] for it in found["kernels"] if it["specialised"]} == {}


def test_the_kernels_compile_for_gpus(found: dict[str, Any]) -> None:
    for it in found["kernels"]:
        assert_assembly(it["name"], it["ptx"], H100)
        assert it["bytes"] > 0


@pytest.mark.slow
def test_the_kernels_compile_for_an_a100() -> None:
    for it in launched("--rows", "1", "--capability", "80")["kernels"]:
        assert_assembly(it["name"], it["ptx"], 80)
