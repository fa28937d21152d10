#!/usr/bin/env bash
# In Triton's interpreter a constexpr plus a tensor is a constexpr, not a tensor.
# One would expect: ONE + x and x + ONE are the same tensor, as in kernels that are compiled for a GPU.
# What happens: `tl.constexpr.__add__` takes the tensor for a constant and wraps the sum in another constexpr.  The next
# operation that needs a tensor fails; `tl.store` says that it cannot convert it.  With the constant on the right, the
# sum is a tensor.  So an expression that runs on GPUs fails only in tests that use the interpreter.
# Seen with triton 3.9.0 and torch 2.13.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "triton==3.9.0" "numpy==2.4.6" "torch==2.13.0"
cat >"$work/sums.py" <<'PYTHON'
import os

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl

ONE = tl.constexpr(1)


@triton.jit
def right(x, out):
    tl.store(out, tl.load(x) + ONE)


@triton.jit
def left(x, out):
    tl.store(out, ONE + tl.load(x))


x = torch.tensor([4], dtype=torch.int32)
out = torch.zeros(1, dtype=torch.int32)
right[(1,)](x, out)
print(f"triton {triton.__version__}: x + ONE is {out.item()}", end="; ")
try:
    left[(1,)](x, out)
except Exception as error:
    print(f"ONE + x: {type(error).__name__}: {error}")
    assert "cannot convert" in str(error), "the behaviour has changed"
else:
    raise SystemExit(f"ONE + x is {out.item()}: the behaviour has changed")
PYTHON
"$work/venv/bin/python" "$work/sums.py"
