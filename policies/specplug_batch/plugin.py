"""Registration of the policy `batch`, and the choice of its plan half.  Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specplug.plugins.specs import PolicySpec, hookimpl

if TYPE_CHECKING:
    from specplug.interfaces import Planner, PluginContext


@hookimpl
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register the policy; its trim half is the default."""
    register(
        PolicySpec(
            name="batch",
            factory="specplug_batch.plugin:build",
            summary="verifies the draft tokens that pay at the current batch size",
            options="specplug_batch.options:BatchOptions",
        )
    )


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine."""
    from specplug.types.caps import DraftLengthChange, Ragged
    from specplug_batch.padded import FreePlanner, PaddedPlanner, TreePlanner
    from specplug_batch.ragged import RaggedPlanner

    caps = context.caps
    if caps.ragged in (Ragged.NATIVE, Ragged.LONGEST):
        return RaggedPlanner(context)
    has_choice = caps.draft_length_change is not DraftLengthChange.FIXED or 0 in caps.captured_draft_lengths
    if not has_choice:
        return FreePlanner(context)
    return (TreePlanner if caps.trees else PaddedPlanner)(context)
