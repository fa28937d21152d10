"""Registration of the proposer `crosstok`.  Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import ProposerSpec, hookimpl
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
            memory="specplug_crosstok.loading:declared",
            caps=caps,
        )
    )


def caps(device: str) -> ProposerCaps:
    """Return what it needs: on a GPU it drafts there, elsewhere on the host."""
    on_host = device != "cuda"
    return ProposerCaps(needs_host=on_host, incremental=on_host, distribution=Distribution.LOGITS, learns=True)
