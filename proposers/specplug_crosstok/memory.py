"""The memory that the proposer `crosstok` takes on the host, from the draft model's configuration."""

from __future__ import annotations

import torch

from specplug.draft_model.facts import cache_elements, count_parameters, read_facts
from specplug.interfaces import PluginContext
from specplug_crosstok.options import CrossTokSettings

_TEMPORARIES = 64 << 20  # bytes of activations and logits of a pass


def declared(context: PluginContext) -> int:
    """Return the most bytes that weights, caches and temporaries take on the host.

    A model on a GPU takes none of these; there all of it is allocated before the engine measures its memory.
    """
    options: CrossTokSettings = context.options or CrossTokSettings()
    on_gpu = options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())
    if on_gpu or not options.model:
        return 0
    facts = read_facts(options.model)
    size = 4 if options.dtype == "auto" else getattr(torch, options.dtype).itemsize
    parameters = count_parameters(facts)
    num_weights = parameters.dense + parameters.embedding + parameters.experts * parameters.expert
    max_length = min(options.max_context, facts.max_length or options.max_context) + 1
    num_cached = min(options.max_requests, context.max_slots) * max_length * (cache_elements(facts) or 0)
    return size * (num_weights + num_cached) + _TEMPORARIES
