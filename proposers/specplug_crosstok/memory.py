"""The memory that the proposer `crosstok` takes on its batches' device, from the draft model's configuration."""

from __future__ import annotations

import torch

from specplug.draft_model.facts import cache_elements, count_parameters, read_facts
from specplug.interfaces import PluginContext
from specplug.types.caps import Distribution
from specplug_crosstok.options import CrossTokSettings

_TEMPORARIES = 64 << 20  # bytes of activations and logits of a pass
_GRAPHS = 256 << 20  # bytes of captured graphs, and of the tables of two vocabularies
_PER_LOGIT = 40  # bytes of the temporaries of a choice: the logits, three distributions and sums in float64


def declared(context: PluginContext) -> int:
    """Return the most bytes that weights, caches and temporaries take on the context's device.

    For batches on the host, a model on a GPU takes none of these; there all of it is allocated before the engine
    measures its memory.
    """
    options: CrossTokSettings = context.options or CrossTokSettings()
    on_device = context.device.type == "cuda"
    on_gpu = options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())
    if not options.model or (on_gpu and not on_device):
        return 0
    facts = read_facts(options.model)
    checkpoints = facts.dtype if on_device else torch.float32
    size = (checkpoints if options.dtype == "auto" else getattr(torch, options.dtype)).itemsize
    parameters = count_parameters(facts)
    num_weights = parameters.dense + parameters.embedding + parameters.experts * parameters.expert
    max_length = min(options.max_context, facts.max_length or options.max_context) + 1
    max_rows = min(options.max_requests, context.max_slots)
    weights_and_cache = size * (num_weights + max_rows * max_length * (cache_elements(facts) or 0))
    of_drafts = _of_drafts(context, max_rows, facts.vocab_size)
    return weights_and_cache + _TEMPORARIES + of_drafts + (_GRAPHS if on_device else 0)


def _of_drafts(context: PluginContext, max_rows: int, draft_vocab: int) -> int:
    """Return the bytes of choices, and of the logits that drafts are drawn from."""
    states = context.caps.draft_input is not Distribution.ONE_HOT
    stated = 2 * (context.caps.max_draft_length + 1) * min(draft_vocab, context.vocab_size) * torch.float32.itemsize
    return max_rows * (_PER_LOGIT * draft_vocab + states * stated)
