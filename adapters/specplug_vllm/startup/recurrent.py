"""Checks and row order for models with recurrent state (Mamba, short convolutions, linear attention).

A rejected draft token cannot be removed from such a state.  vLLM's decode kernels keep the state after every token of a
step, and the next step starts from the state after the last accepted token.  Its prefill kernels keep only the state
after the last token, so drafts must never run through them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.errors import EngineError
from specplug_vllm import seams

ROLLED_BACK = ("GDN_ATTN", "MAMBA2", "SHORT_CONV")
"""Kinds of layers, by vLLM's names, whose kernels get the accepted counts from both runners."""


_log = logging.getLogger(__name__)


def is_recurrent(vllm_config: Any) -> bool:
    """Return whether vLLM keeps recurrent states for the model."""
    model = vllm_config.model_config
    return bool(model.is_hybrid or model.is_attention_free)


def can_roll_back(vllm_config: Any) -> bool:
    """Return whether the decode kernels keep the states after all tokens of a step; vLLM's CPU kernels do not."""
    return bool(vllm_config.device_config.device_type != "cpu")


def refuse_unsupported(vllm_config: Any) -> None:
    """Refuse models with recurrent state if vLLM does not roll back rejected drafts; log a warning for the others.

    Raises:
        EngineError: rejected drafts would stay in the state, and the text would be wrong.
    """
    if not is_recurrent(vllm_config):
        return
    if not can_roll_back(vllm_config):
        _refuse(
            "vLLM's CPU kernels do not roll back rejected draft tokens",
            found=f"{_architecture(vllm_config)}, a model with recurrent state, on a CPU",
            expected="a GPU, or a model of attention layers alone",
        )
    if vllm_config.model_config.is_attention_free and not vllm_config.use_v2_model_runner:
        _refuse(
            "vLLM's V1 runner does not record accepted draft tokens for models without attention",
            found=f"{_architecture(vllm_config)} on V1",
            expected="the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1)",
        )
    _log.warning(
        "specplug has not been tried with vLLM's GPU kernels for %s, a model with recurrent state: "
        "compare a few answers with those of a server without specplug",
        _architecture(vllm_config),
    )


def refuse_layers(kv_cache_config: Any) -> None:
    """Refuse kinds of recurrent layers whose kernels do not get the accepted counts from the runners.

    Raises:
        EngineError: the model has such layers.
    """
    kinds = [getattr(group.kv_cache_spec, "mamba_type", None) for group in kv_cache_config.kv_cache_groups]
    unknown = sorted({kind.name for kind in kinds if kind is not None and kind.name not in ROLLED_BACK})
    if unknown:
        _refuse(
            "vLLM does not roll back rejected draft tokens in these recurrent layers",
            found=", ".join(unknown),
            expected=f"none but {', '.join(ROLLED_BACK)}",
        )


def install_v1_worker(runner: Any) -> None:
    """Make V1 sort all decoding rows before prefilling rows.

    vLLM takes a row with drafts for part of a prompt if any attention layer has no decode kernel for several tokens per
    row (FlashInfer's, for example, on most GPUs), and leaves it behind rows that read a long prompt in pieces.
    """
    seams.require("recurrent")
    original = runner._may_reorder_batch
    longest = runner.num_spec_tokens + 1

    @functools.wraps(original)
    def may_reorder_batch(scheduler_output: Any) -> None:
        original(scheduler_output)
        threshold = runner.reorder_batch_threshold
        if threshold is not None and threshold < longest:
            _sort_decodes(runner.input_batch, scheduler_output.num_scheduled_tokens, threshold)

    runner._may_reorder_batch = may_reorder_batch


def install_worker(runner: Any) -> None:
    """Make V2 sort decoding rows before prefilling rows.  The patch follows the newest runner of the process.

    vLLM splits a batch at its first prefilling row and runs the rest through the prefill kernels.  It sorts rows
    without drafts by their length, those as long as the longest verification first, so that a prompt of that length
    would come before rows that decode one token.
    """
    seams.require("recurrent")
    from vllm.v1.worker.gpu import model_runner

    states = runner.req_states
    present = model_runner.sort_batch_req_ids
    original = getattr(present, "_specplug_original", present)

    @functools.wraps(original)
    def sort_batch_req_ids(counts: Mapping[str, int], drafts: Mapping[str, Sequence[int]], *args: Any) -> list[str]:
        def prefills(name: str) -> bool:
            slot = states.req_id_to_index[name]
            own = counts[name] - len(drafts.get(name, ()))
            computed = int(states.num_computed_prefill_tokens[slot])
            return computed < int(states.prefill_len.np[slot]) and not (own == 1 and computed > 0)

        return sorted(original(counts, drafts, *args), key=prefills)

    sort_batch_req_ids._specplug_original = original  # type: ignore[attr-defined]
    model_runner.sort_batch_req_ids = sort_batch_req_ids


def _sort_decodes(batch: Any, counts: Mapping[str, int], threshold: int) -> None:
    """Sort V1's rows: those that decode `threshold` tokens or fewer, those that decode more, those that prefill."""
    names = batch.req_ids
    prefills = batch.num_computed_tokens_cpu[: len(names)] < batch.num_prompt_tokens[: len(names)]
    keys = [2 if prefill else int(counts[name] > threshold) for name, prefill in zip(names, prefills, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    for row, source in enumerate(order):
        while source < row:  # an earlier swap has moved it
            source = order[source]
        if source != row:
            batch.swap_states(row, source)


def _architecture(vllm_config: Any) -> str:
    return str(vllm_config.model_config.architecture)


def _refuse(message: str, *, found: str, expected: str) -> None:
    raise EngineError.build(
        message, who="specplug_vllm", found=found, expected=expected, remedy="Serve this model without specplug"
    )
