#!/usr/bin/env bash
# Making a Numba structref from Python compiles again in every process; no cache on disk helps.
# One would expect: where all functions of a module have cache=True, a second process compiles nothing.
# What happens: calling a StructRefProxy, as in `Box(...)`, compiles a constructor that Numba makes without a cache, once
# for each combination of field types, in each process.  Functions that take the box are loaded from the cache.  Two
# fields take tenths of a second, tens of fields take seconds.  A constructor of one's own with cache=True is loaded.
# Seen with numba 0.68.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "numba==0.68.1" "numpy==2.4.6"
cat >"$work/boxes.py" <<'PYTHON'
from numba import njit, types
from numba.experimental import structref


@structref.register
class BoxType(types.StructRef):
    def preprocess_fields(self, fields):
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Box(structref.StructRefProxy):
    pass


structref.define_proxy(Box, BoxType, ["items", "more"])


@njit(cache=True)
def total(box):
    return box.items.sum() + box.more
PYTHON
cat >"$work/use.py" <<'PYTHON'
import sys

import numba
import numpy as np
from boxes import Box, total
from numba.core import event

compiled = []
for use in (lambda: Box(np.ones(3), 1.0), lambda: total(box)):
    with event.install_recorder("numba:compile") as recorder:
        box = use()
    compiled.append(sum(entry.is_start for _, entry in recorder.buffer))
print(f"numba {numba.__version__}, process {sys.argv[1]}: functions compiled for Box(...) {compiled[0]}, "
      f"for total(box) {compiled[1]}")
assert compiled[0] > 0 and (compiled[1] > 0) == (sys.argv[1] == "1"), "the behaviour has changed"
PYTHON
for process in 1 2; do
    NUMBA_CACHE_DIR="$work/cache" "$work/venv/bin/python" "$work/use.py" "$process"
done
