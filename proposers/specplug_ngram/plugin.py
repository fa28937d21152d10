"""Registration of the n-gram proposers.  Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.types.caps import ProposerCaps


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register the proposer and its plain reference."""
    register(
        ProposerSpec(
            name="ngram",
            factory="specplug.lookup.proposer:LookupProposer",
            summary="drafts what followed earlier matches, in the text, its references and remembered responses",
            options="specplug.lookup.options:LookupSettings",
            caps=ProposerCaps(incremental=True, trees=True, extends=True, deterministic=True),
            memory="specplug.lookup.proposer:memory_size",
        )
    )
    register(
        ProposerSpec(
            name="ngram-reference",
            factory="specplug_ngram.reference:NgramReference",
            summary="plain prompt lookup: what followed the last tokens when they occurred before",
            options="specplug_ngram.reference:ReferenceSettings",
            caps=ProposerCaps(needs_host=True),
        )
    )
