"""The n-gram proposer, which drafts from own text, references and remembered responses."""

from __future__ import annotations

from specplug.interfaces import PluginContext
from specplug.match.cpu.lookup import SOURCES
from specplug.match.options import LookupSettings
from specplug.match.proposer import LookupProposer


class Ngram(LookupProposer):
    """Drafts continuations of matches in the request's own text and references, and in remembered responses."""

    sources = SOURCES[:3]

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context, context.options or LookupSettings())
