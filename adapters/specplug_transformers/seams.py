"""Probes of the parts of transformers that this adapter relies on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from specplug.errors import EngineError
from specplug.plugins.specs import CheckResult

SUPPORTED = "transformers 5.16 to 5.19"
_REMEDY = f"Install a supported version: {SUPPORTED}"


def check(_settings: Any) -> CheckResult:
    """Report whether every seam is there, and name the missing ones."""
    try:
        import transformers
    except ImportError as error:
        return CheckResult("warn", f"transformers is not installed: {error}", "pip install 'specplug[transformers]'")
    moved = moved_seams()
    if moved:
        return CheckResult("fail", f"transformers {transformers.__version__} has moved: {', '.join(moved)}", _REMEDY)
    return CheckResult("ok", f"transformers {transformers.__version__}: all seams found")


@functools.cache
def require() -> None:
    """Refuse to start on a transformers version whose seams have moved.  Probes once per process.

    Raises:
        EngineError: a seam is missing.
    """
    import transformers

    moved = moved_seams()
    if moved:
        raise EngineError.build(
            f"transformers has moved: {', '.join(moved)}",
            who="specplug_transformers",
            found=f"transformers {transformers.__version__}",
            expected=SUPPORTED,
            remedy=_REMEDY,
        )


def moved_seams() -> list[str]:
    """Return the names of the seams that do not hold in the installed transformers."""
    return [name for name, holds in _PROBES.items() if not _holds(holds)]


def _holds(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except Exception:  # a moved seam may raise anything
        return False


def _cache_hands_over_to_layers() -> bool:
    import torch

    from specplug_transformers.cache import Place, RowCache

    cache = RowCache(1)
    cache.place = Place([1], torch.tensor([[0, 1]]), 2)
    states = torch.ones(1, 1, 2, 3)
    keys, values = cache.update(states, 2 * states, 0)
    return torch.equal(keys, states) and torch.equal(values, 2 * states)


def _prepared_masks_are_kept() -> bool:
    import torch
    from transformers import LlamaConfig, masking_utils

    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1, vocab_size=4)
    config._attn_implementation = "sdpa"
    mask = torch.ones(1, 1, 2, 3, dtype=torch.bool)
    made = masking_utils.create_causal_mask(
        config=config, inputs_embeds=torch.zeros(1, 2, 4), attention_mask=mask, past_key_values=None
    )
    return made is mask


def _models_declare_what_they_can() -> bool:
    from transformers import PreTrainedModel

    return isinstance(PreTrainedModel._is_stateful, bool) and hasattr(PreTrainedModel, "_supports_attention_backend")


def _generate_takes_functions() -> bool:
    from transformers import GenerationMixin

    return "custom_generate" in inspect.signature(GenerationMixin.generate).parameters


_PROBES: dict[str, Callable[[], bool]] = {
    "Cache.update calls the layers of Cache(layers=...)": _cache_hands_over_to_layers,
    "4-d attention masks are used unchanged": _prepared_masks_are_kept,
    "PreTrainedModel._is_stateful and ._supports_attention_backend": _models_declare_what_they_can,
    "generate(custom_generate=...)": _generate_takes_functions,
}
