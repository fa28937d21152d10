"""specplug: one speculative-decoding plug-in layer for LLM engines.

Public names are imported on first use, so that ``import specplug`` costs nothing in engine processes that only
discover plug-ins.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "specplug.composing": ("ComposedProposer",),
    "specplug.errors": (
        "ContractError",
        "EngineError",
        "PluginError",
        "RequestError",
        "SettingsError",
        "SpecplugError",
        "TraceError",
    ),
    "specplug.host": ("HostDraft", "HostProposer"),
    "specplug.interfaces": (
        "Planner",
        "PluginContext",
        "Proposer",
        "Trimmer",
        "Verifier",
    ),
    "specplug.plugins.registry": ("Registry", "default_registry"),
    "specplug.plugins.specs": (
        "CheckResult",
        "CheckSpec",
        "PolicySpec",
        "ProposerSpec",
        "VerifierSpec",
        "hookimpl",
    ),
    "specplug.types.batch": ("Barrier", "EngineBatch"),
    "specplug.types.caps": (
        "Distribution",
        "EngineCaps",
        "ProposerCaps",
        "Ragged",
        "VerifierCaps",
        "DraftLengthChange",
    ),
    "specplug.types.draft": ("Draft",),
    "specplug.types.plan": ("HostStats", "Price", "RequestStats", "StepCost", "StepPlan", "StepReport", "TrimLimits"),
    "specplug.types.request": (
        "EngineEvent",
        "Lifecycle",
        "Reference",
        "Request",
        "RequestEvent",
        "RequestOptions",
        "StoredDocument",
    ),
    "specplug.types.verdict": ("Outcome", "Verdict"),
    "specplug.types.verification": ("SamplingBatch", "TargetLogits", "Uniforms", "Verification"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplug' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
