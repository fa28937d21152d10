"""Registration of the proposer `retrieval`.  Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.types.caps import ProposerCaps


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register the proposer."""
    register(
        ProposerSpec(
            name="retrieval",
            factory="specplug_retrieval.proposer:Retrieval",
            summary="drafts as ngram does, and from corpora that the server holds",
            options="specplug.lookup.options:LookupSettings",
            sections=("corpora",),
            caps=ProposerCaps(incremental=True, trees=True, extends=True),
            memory="specplug.lookup.proposer:memory_size",
        )
    )
