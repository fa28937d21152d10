"""A proposer composed of other proposers."""

from __future__ import annotations

from specplug.composing import ComposedProposer
from specplug.interfaces import PluginContext
from specplug_testkit.options import SplicedOptions


class Spliced(ComposedProposer):
    """Drafts what its parts draft, each continuing where those before it end."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context, (context.options or SplicedOptions()).parts)
