"""A step of the lookup on a GPU: what it launches, through Triton's own launcher over a driver that does nothing."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.engines.launch import PYTHON, ROOT

OF_A_STEP = {"begin_kernel", "ingest_kernel", "scan_kernel", "draft_kernel", "finish_kernel"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, "-m", "benchmarks.launches", "--rows", "1", "3", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_step_launches_each_kernel_once(found: dict[str, Any]) -> None:
    launches = {step["rows"]: step["launches"] for step in found["steps"]}
    assert launches == {1: len(OF_A_STEP), 3: len(OF_A_STEP)}


def test_kernels_have_one_variant_for_all_batches(found: dict[str, Any]) -> None:
    variants = found["variants"]
    assert {name for name, number in variants.items() if number} >= OF_A_STEP
    assert max(variants.values()) == 1
