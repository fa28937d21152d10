"""Probes of the parts of transformers that this adapter relies on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from specplug.errors import EngineError
from specplug.plugins.specs import CheckResult
from specplug.seams.installed import version_result
from specplug.seams.support import Range

VERSIONS = Range(engine="transformers", oldest=(5, 16), newest=(5, 24))
"""The oldest and the newest version that `make test-versions` runs."""


def check(_settings: Any) -> list[CheckResult]:
    """Report whether every seam is there, and whether `generate` gives the same text with specplug as without."""
    try:
        import transformers
    except ImportError as error:
        remedy = "pip install 'specplug[transformers]'"
        return [CheckResult("warn", f"transformers is not installed: {error}", remedy)]
    return [version_result(VERSIONS, transformers.__version__), _found(f"transformers {transformers.__version__}")]


def _found(installed: str) -> CheckResult:
    moved = moved_seams()
    if moved:
        return CheckResult("fail", f"{installed} has moved: {', '.join(moved)}", VERSIONS.remedy)
    try:
        failure = "" if _generates_the_same_text() else "another text than without specplug"
    except Exception as error:  # a moved seam may raise anything
        failure = f"{type(error).__name__}: {error}"
    if failure:
        return CheckResult("fail", f"{installed}: generate(custom_generate=...) gave {failure}", VERSIONS.remedy)
    return CheckResult("ok", "all seams found, and generate(custom_generate=...) gives the same text")


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
            expected=str(VERSIONS),
            remedy=VERSIONS.remedy,
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
    cache.place = Place([1], [0], 2, torch.device("cpu"))
    states = torch.ones(1, 1, 2, 3)
    keys, values = cache.update(states, 2 * states, 0)
    return torch.equal(keys, states) and torch.equal(values, 2 * states)


def _prepared_masks_are_kept() -> bool:
    import torch
    from transformers import LlamaConfig, masking_utils

    from specplug_transformers.cache import RowCache

    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1, vocab_size=4)
    config._attn_implementation = "sdpa"
    mask = torch.ones(1, 1, 2, 3, dtype=torch.bool)
    is_kept = masking_utils.create_causal_mask(config, torch.zeros(1, 2, 4), mask, None) is mask
    return is_kept and masking_utils.create_causal_mask(config, torch.zeros(1, 1, 4), None, RowCache(1)) is None


def _models_declare_what_they_can() -> bool:
    from transformers import PreTrainedModel

    return isinstance(PreTrainedModel._is_stateful, bool) and hasattr(PreTrainedModel, "_supports_attention_backend")


def _generates_the_same_text() -> bool:
    """Call a random model's `generate` as users do, with left padding and a penalty."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specplug.settings import Settings
    from specplug_transformers.custom_generate import speculative_generate

    shape: Any = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    make: Any = LlamaForCausalLM
    with torch.random.fork_rng(devices=[]):
        model = make(LlamaConfig(**shape, vocab_size=16, pad_token_id=0, eos_token_id=None))
        ids = torch.tensor([[3, 4, 3, 4], [0, 5, 6, 5]])
        given = {"attention_mask": (ids > 0).long(), "max_new_tokens": 8, "do_sample": False, "repetition_penalty": 1.1}
        ours = {"custom_generate": speculative_generate, "specplug": Settings(proposer="ngram-reference")}
        plain, found = (model.generate(ids, **given, **own) for own in ({}, ours))
    return torch.equal(plain, found)


_PROBES: dict[str, Callable[[], bool]] = {
    "Cache.update calls the layers of Cache(layers=...)": _cache_hands_over_to_layers,
    "4-d attention masks are used unchanged": _prepared_masks_are_kept,
    "PreTrainedModel._is_stateful and ._supports_attention_backend": _models_declare_what_they_can,
}
