"""Conformance kit for plug-in authors, adapters and specplug's own tests.

Needs the extra ``specplug[testing]``.  Names are imported on first use, so that a test of a proposer does
not import what only tests of verifiers need.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Case": "specplug.testing.output_distribution",
    "EqualityReport": "specplug.testing.equality",
    "Knobs": "specplug.testing.output_distribution",
    "PolicyContract": "specplug.testing.policy_contract",
    "ProposerContract": "specplug.testing.contract",
    "TinyModel": "specplug.testing.output_distribution",
    "VerifierContract": "specplug.testing.verifier_contract",
    "emitted_distribution": "specplug.testing.output_distribution",
    "g_test": "specplug.testing.equality",
    "g_test_power": "specplug.testing.equality",
    "judge_greedy": "specplug.testing.equality",
    "distribution_error": "specplug.testing.output_distribution",
    "make_batch": "specplug.testing.batches",
    "target_distribution": "specplug.testing.output_distribution",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplug.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
