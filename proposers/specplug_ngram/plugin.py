"""Registers the n-gram proposer.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from specplug.hooks import hookimpl
from specplug.specs import ProposerSpec
from specplug.types.caps import ProposerCaps


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register the reference."""
    register(
        ProposerSpec(
            name="ngram",
            factory="specplug_ngram.reference:NgramReference",
            summary="drafts what followed the last tokens when they occurred before, in the text or its references",
            options="specplug_ngram.options:NgramOptions",
            caps=ProposerCaps(needs_host=True),
        )
    )
