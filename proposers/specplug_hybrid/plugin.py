"""Registration of the proposer `hybrid`.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.types.caps import Distribution, ProposerCaps


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register the proposer."""
    register(
        ProposerSpec(
            name="hybrid",
            factory="specplug_hybrid.proposer:Hybrid",
            summary="lookup where it is surer, a draft model elsewhere, and none of its steps where they do not pay",
            options="specplug_hybrid.proposer:HybridSettings",
            caps=ProposerCaps(needs_host=True, inline=True, distribution=Distribution.LOGITS, learns=True),
        )
    )
