"""Status of a running server as plain data: dicts, lists, strings and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specplug.faults import status_of
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import EngineCaps, Ragged


def reported_settings(resolved: ResolvedSettings) -> dict[str, dict[str, Any]]:
    """Return every setting's value and the layer that set it, by dotted key."""
    reported: dict[str, dict[str, Any]] = {}
    plain = resolved.settings.model_dump(mode="json")
    for key, origin in resolved.origins.items():
        reported[key] = {"value": _at(plain, key), "origin": origin}
    return reported


def reported_rows(caps: EngineCaps) -> str:
    """Return in words how many draft tokens an engine verifies of each row."""
    if caps.verifies_budget:
        return "cut on the device to what the plan allows the batch"
    return "as many as drafted" if caps.ragged is Ragged.NATIVE else "padded to the draft length of the step"


def by_plugin(faults: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return fault counts nested by plug-in and kind of fault."""
    reported: dict[str, dict[str, int]] = {}
    for (name, kind), count in faults.items():
        reported.setdefault(name, {})[kind] = count
    return reported


def counting_parts(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of an engine's status that hold counts.

    They are those of its drafting workers, or the scheduler's if the engine's own drafter drafts.
    """
    return [part for part in (*status["workers"], status["scheduler"]) if "metrics" in part]


def reported_details(proposers: Mapping[str, object]) -> dict[str, Any]:
    """Return the details that proposers report, by name; {"error": ...} for a proposer whose report fails."""
    found = {name: status_of(f"proposer {name!r}", proposer) for name, proposer in proposers.items()}
    return {name: status for name, status in found.items() if status}


def _at(tree: Any, key: str) -> Any:
    """Return the value at a dotted key, whose parts may contain dots themselves."""
    if not key:
        return tree
    part = next(part for part in tree if key == part or key.startswith(f"{part}."))
    return _at(tree[part], key[len(part) + 1 :])
