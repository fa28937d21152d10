"""The seams of transformers that this adapter uses, probed instead of assumed."""

from __future__ import annotations

import inspect
from typing import Any

from specplug.specs import CheckResult

SUPPORTED = "transformers 5.16 to 5.19"


def check(_settings: Any) -> CheckResult:
    """Report whether every seam is there, naming the first that is not."""
    try:
        import transformers
    except ImportError as error:
        return CheckResult("warn", f"transformers is not installed: {error}", "pip install 'specplug[transformers]'")
    moved = [name for name, holds in _seams().items() if not holds]
    if moved:
        return CheckResult(
            "fail",
            f"transformers {transformers.__version__} has moved: {', '.join(moved)}",
            f"Install a supported version: {SUPPORTED}",
        )
    return CheckResult("ok", f"transformers {transformers.__version__}: all seams found")


def _seams() -> dict[str, bool]:
    from transformers import GenerationMixin, cache_utils
    from transformers.masking_utils import create_causal_mask

    update = inspect.signature(cache_utils.Cache.update).parameters
    return {
        "Cache.update(key_states, value_states, layer_idx)": list(update)[1:4]
        == ["key_states", "value_states", "layer_idx"],
        "Cache(layers=...)": "layers" in inspect.signature(cache_utils.Cache.__init__).parameters,
        "DynamicLayer.lazy_initialization": hasattr(cache_utils.DynamicLayer, "lazy_initialization"),
        "4-d attention masks taken as they are": _keeps_prepared_masks(create_causal_mask),
        "generate(custom_generate=...)": "custom_generate" in inspect.signature(GenerationMixin.generate).parameters,
    }


def _keeps_prepared_masks(create_causal_mask: Any) -> bool:
    import torch
    from transformers import LlamaConfig

    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1, vocab_size=4)
    config._attn_implementation = "sdpa"
    mask = torch.ones(1, 1, 2, 3, dtype=torch.bool)
    made = create_causal_mask(
        config=config, inputs_embeds=torch.zeros(1, 2, 4), attention_mask=mask, past_key_values=None
    )
    return made is mask
