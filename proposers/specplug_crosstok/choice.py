"""The choice between the two forms of the proposer `crosstok`."""

from __future__ import annotations

from specplug.interfaces import PluginContext, Proposer
from specplug_crosstok.device.proposer import DeviceCrossTok
from specplug_crosstok.proposer import CrossTok


def build(context: PluginContext) -> Proposer:
    """Return the proposer for batches on the context's device."""
    return DeviceCrossTok(context) if context.device.type == "cuda" else CrossTok(context)
