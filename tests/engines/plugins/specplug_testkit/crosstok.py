"""The proposer `crosstok` as it runs for batches on a GPU, on any device."""

from __future__ import annotations

from specplug.interfaces import PluginContext
from specplug_crosstok.proposer import CrossTok


def on_device(context: PluginContext) -> CrossTok:
    """Build it."""
    return CrossTok(context, on_host=False)
