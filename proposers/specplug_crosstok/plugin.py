"""Registration of the proposer `crosstok`.  Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.hooks import hookimpl
from specplug.plugins.specs import ProposerSpec
from specplug.types.caps import Distribution, ProposerCaps


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register the proposer."""
    register(
        ProposerSpec(
            name="crosstok",
            factory="specplug_crosstok.proposer:CrossTok",
            summary="drafts with a smaller model, of the same tokenizer or another one",
            options="specplug_crosstok.options:CrossTokSettings",
            memory="specplug_crosstok.memory:declared",
            caps=ProposerCaps(needs_host=True, incremental=True, distribution=Distribution.LOGITS, learns=True),
        )
    )
