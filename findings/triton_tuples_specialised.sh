#!/usr/bin/env bash
# Triton specialises the entries of a tuple that is a kernel's argument, whatever the kernel's decorator says of it.
# One would expect: `do_not_specialize` and `do_not_specialize_on_alignment` hold for all that an argument consists of.
# What happens: an entry that is 1 becomes a constant of the code, and a pointer that is a multiple of 16 is taken for
# one that always is, as without the options.  So there is a variant for each combination of values, each compiled when
# it first comes; and a compiled kernel that is launched again with other entries, as `compiled[grid](...)` allows,
# takes the first ones' code without an error.  The same number as an argument of its own is not specialised.
# No GPU is needed: nothing is launched.
# Seen with triton 3.9.0, and with 3.6.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "triton==3.9.0" "numpy==2.4.6" "torch==2.13.0"
cat >"$work/tuples.py" <<'PYTHON'
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

gpu = SimpleNamespace(
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
)
driver.set_active(gpu)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x"])
def flat(x, n):
    tl.store(x, n)


@triton.jit(do_not_specialize=["it"], do_not_specialize_on_alignment=["it"])
def record(it):
    tl.store(it[0], it[1])


x = torch.zeros(1, dtype=torch.int32)
apart = flat.warmup(x, 1, grid=(1,)).src
inside = record.warmup((x, 1), grid=(1,)).src
print(f"triton {triton.__version__}: flat {apart.constants}, in a tuple {inside.constants} {inside.attrs}")
assert not apart.constants and not any(apart.attrs.values()), "the behaviour has changed"
assert inside.constants == {(0, 1): 1} and inside.attrs[0, 0], "the behaviour has changed"
PYTHON
"$work/venv/bin/python" "$work/tuples.py"
