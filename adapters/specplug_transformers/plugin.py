"""Hook implementations of the transformers adapter.  This module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specplug.plugins.specs import CheckResult, CheckSpec, hookimpl
from specplug.seams.support import version_result


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register a check of the installed transformers."""
    register(
        CheckSpec(
            name="transformers",
            factory="specplug_transformers.plugin:check",
            summary="the installed transformers is supported, and gives the same text with specplug as without",
        )
    )


def check(_settings: Any) -> list[CheckResult]:
    """Report whether the version is supported, and whether `generate` gives the same text with specplug as without."""
    try:
        import transformers
    except ImportError as error:
        remedy = "pip install 'specplug[transformers]'"
        return [CheckResult("warn", f"transformers is not installed: {error}", remedy)]
    from specplug_transformers.runner import VERSIONS

    try:
        failure = "" if _generates_the_same_text() else "another text than without specplug"
    except Exception as error:  # what has moved may raise anything
        failure = f"{type(error).__name__}: {error}"
    found = CheckResult("ok", "generate(custom_generate=...) gives the same text")
    if failure:
        summary = f"transformers {transformers.__version__}: generate(custom_generate=...) gave {failure}"
        found = CheckResult("fail", summary, VERSIONS.remedy)
    return [version_result(VERSIONS, transformers.__version__), found]


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
        call = {"attention_mask": (ids > 0).long(), "max_new_tokens": 8, "do_sample": False, "repetition_penalty": 1.1}
        ours = {"custom_generate": speculative_generate, "specplug": Settings(proposer="ngram-reference")}
        plain, found = (model.generate(ids, **call, **own) for own in ({}, ours))
    return torch.equal(plain, found)
