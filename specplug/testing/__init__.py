"""Conformance kit for plug-in authors, adapters and specplug's own tests.

Needs the extra ``specplug[testing]``.  Names are imported on first use, so that a test of a proposer does
not import what only tests of verifiers need.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "batches": ["make_batch"],
    "contract": ["ProposerContract"],
    "equality": ["EqualityReport", "g_test", "g_test_power", "judge_greedy"],
    "output_distribution": [
        "Case",
        "Knobs",
        "TinyModel",
        "distribution_error",
        "emitted_distribution",
        "target_distribution",
    ],
    "policy_contract": ["PolicyContract"],
    "verifier_contract": ["VerifierContract"],
}
_HOME = {name: f"specplug.testing.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplug.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
