"""Proposers made of others: spliced, or `crosstok` as it runs for batches on a GPU."""

from __future__ import annotations

from specplug.composing import ComposedProposer
from specplug.interfaces import PluginContext
from specplug_testkit.options import SplicedOptions


class Spliced(ComposedProposer):
    """Drafts what its parts draft, each continuing where those before it end."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context, (context.options or SplicedOptions()).parts)


def crosstok_on_device(context: PluginContext) -> object:
    """Build `crosstok` for the engine's device, on a CPU too."""
    from specplug_crosstok.proposer import CrossTok

    return CrossTok(context, on_host=False)
