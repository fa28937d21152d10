"""The draft lengths that vLLM's V2 runner captures full CUDA graphs for.

vLLM captures one length, `num_speculative_tokens`, and runs steps of any other piecewise, plain decoding included.  It
captures several where ``num_speculative_tokens_per_batch_size`` names them, so that list is filled in where the launch
left it out.  The scheduler plans freely among them; vLLM's own choice by batch size is not used.

A step of T tokens only takes a graph of the next captured size at or above T.  vLLM's default sizes are multiples of 8
and 16, so that every batch size finds a graph where 1 + length is a power of two.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from specplug_vllm.config import SECTION, cuts_on_device, is_requested, runner_of

logger = logging.getLogger("specplug")


def install(config_class: Any) -> None:
    """Name the lengths when vLLM has settled its graph mode and is about to choose the sizes that it captures."""
    original = config_class._set_cudagraph_sizes
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def set_cudagraph_sizes(self: Any) -> None:
        if is_requested(self):
            name_lengths(self)
        original(self)

    set_cudagraph_sizes._specplug = True  # type: ignore[attr-defined]
    config_class._set_cudagraph_sizes = set_cudagraph_sizes


def lengths_up_to(most: int) -> tuple[int, ...]:
    """Return the draft lengths 2^n - 1 up to `most`, descending to 0."""
    return tuple((1 << bits) - 1 for bits in range((most + 1).bit_length() - 1, -1, -1))


def schedule(lengths: Sequence[int], max_num_seqs: int) -> list[tuple[int, int, int]]:
    """Return `lengths`, descending, as vLLM's list of (first batch size, last batch size, length).

    Each length but the last gets few and small batch sizes, since vLLM captures further sizes for the largest of them.
    """
    count = len(lengths)
    ends = [min(1 << i, max_num_seqs - (count - 1 - i)) for i in range(count - 1)] + [max_num_seqs]
    return [(first + 1, last, length) for first, last, length in zip([0, *ends], ends, lengths, strict=False)]


def name_lengths(vllm_config: Any) -> None:
    """Fill in the list of captured lengths, where there will be graphs and the launch names none.

    The server's longest draft becomes the longest of them, which is at most what was asked for.  Ranks of data
    parallelism must not choose different lengths, so that vLLM refuses the list there.
    """
    spec, largest = vllm_config.speculative_config, vllm_config.scheduler_config.max_num_seqs
    if spec.num_speculative_tokens_per_batch_size or vllm_config.parallel_config.data_parallel_size > 1:
        return
    lengths = lengths_up_to(spec.num_speculative_tokens)
    if not _captures_by_length(vllm_config) or len(lengths) > largest:
        return
    if lengths[0] != spec.num_speculative_tokens:
        logger.warning(
            "num_speculative_tokens is %d instead of %d: full CUDA graphs are captured for draft lengths %s, which "
            "leave no batch size without one; num_speculative_tokens_per_batch_size names others",
            lengths[0],
            spec.num_speculative_tokens,
            ", ".join(map(str, lengths)),
        )
        _lower(vllm_config, lengths[0])
    spec.num_speculative_tokens_per_batch_size = schedule(lengths, largest)


def captured(vllm_config: Any) -> dict[int, int]:
    """Return the draft lengths that have full CUDA graphs, descending, and the most requests that each has one for."""
    if not _captures_by_length(vllm_config):
        return {}
    spec, largest = vllm_config.speculative_config, vllm_config.scheduler_config.max_num_seqs
    named = spec.num_speculative_tokens_per_batch_size or [(1, largest, spec.num_speculative_tokens)]
    lengths = {min(int(length), spec.num_speculative_tokens) for first, _, length in named if first <= largest}
    tokens = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    return {length: min(tokens // (length + 1), largest) for length in sorted(lengths, reverse=True)}


def _captures_by_length(vllm_config: Any) -> bool:
    """Whether V2 captures full graphs apart from the piecewise ones, each for drafts of one length."""
    mode = vllm_config.compilation_config.cudagraph_mode
    return runner_of(vllm_config) == "v2" and not cuts_on_device(vllm_config) and bool(mode.separate_routine())


def _lower(vllm_config: Any, length: int) -> None:
    """Lower the server's longest draft, also where specplug's settings repeat it."""
    key = "num_speculative_tokens"
    vllm_config.speculative_config.num_speculative_tokens = length
    settings = vllm_config.additional_config
    if isinstance(settings, dict) and key in settings.get(SECTION, {}):
        vllm_config.additional_config = {**settings, SECTION: {**settings[SECTION], key: length}}
