"""Plug-ins receive the model that they draft for."""

from __future__ import annotations

from typing import Any

from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.types.caps import ProposerCaps
from specplug_transformers import Engine
from tests.transformers import toys


def test_proposers_are_reported_of_the_target(llama: Any) -> None:
    contexts: list[PluginContext] = []

    def factory(context: PluginContext) -> toys.Oracle:
        contexts.append(context)
        return toys.Oracle(context)

    spec = ProposerSpec(name="reported", factory=factory, summary="", caps=ProposerCaps(needs_host=True))
    tokenizer = object()
    Engine(llama, tokenizer, settings={"proposer": "reported"}, registry=toys.make_registry([spec])).close()
    (context,) = contexts
    found = context.target_path, context.target_config, context.target_tokenizer
    assert found == (llama.name_or_path or None, llama.config, tokenizer)
