"""Draft lengths for which vLLM's V2 runner captures full CUDA graphs.

By default vLLM captures one length, `num_speculative_tokens`, and runs steps of any other length with piecewise graphs,
plain decoding included.  It captures several if ``num_speculative_tokens_per_batch_size`` lists them, so specplug fills
in that list if the launch omits it.  The scheduler plans freely among them; vLLM's choice by batch size is not used.

A step of T tokens uses the graph of the smallest captured size >= T only.  vLLM's default sizes are multiples of 8 and
16, so every batch size has a graph if 1 + length is a power of two.  vLLM's own drafter keeps the length that it is
launched with; if that is another one, sizes become multiples of 1 + length, and the shorter lengths divide it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specplug.seams.seam import hook
from specplug_vllm.config import (
    SECTION,
    cuts_on_device,
    drafter_of,
    has_lockstep_ranks,
    has_proposers,
    runner_of,
    use_of,
)

logger = logging.getLogger("specplug")


def install(config_class: Any) -> None:
    """Hook `_set_cudagraph_sizes` to list the lengths after vLLM sets its graph mode and before it chooses sizes."""
    hook(config_class, "_set_cudagraph_sizes", _set_cudagraph_sizes)


def _set_cudagraph_sizes(original: Callable[[Any], None], config: Any) -> None:
    if use_of(config):
        set_capture_lengths(config)
    chosen = not config.compilation_config.cudagraph_capture_sizes
    original(config)
    if chosen and use_of(config) == "engine":
        _fit_sizes(config)


def require_lengths_on_v1(vllm_config: Any) -> None:
    """List a draft length if vLLM's own drafter drafts on V1, before vLLM chooses its graph mode.

    vLLM then knows that the length changes, for which V1 has piecewise graphs only.
    """
    if not drafter_of(vllm_config) or runner_of(vllm_config) == "v2":
        return
    spec = vllm_config.speculative_config
    largest = vllm_config.scheduler_config.max_num_seqs
    if not spec.num_speculative_tokens_per_batch_size and vllm_config.parallel_config.data_parallel_size == 1:
        spec.num_speculative_tokens_per_batch_size = [(1, largest, spec.num_speculative_tokens)]


def power_lengths(max_length: int) -> tuple[int, ...]:
    """Return the draft lengths 2^n - 1 up to `max_length`, descending to 0."""
    return tuple((1 << bits) - 1 for bits in range((max_length + 1).bit_length() - 1, -1, -1))


def dividing_lengths(max_length: int) -> tuple[int, ...]:
    """Return the draft lengths n up to `max_length`, descending to 0, for which 1 + n divides 1 + `max_length`."""
    return tuple(length for length in range(max_length, -1, -1) if (max_length + 1) % (length + 1) == 0)


def schedule(lengths: Sequence[int], max_num_seqs: int) -> list[tuple[int, int, int]]:
    """Return `lengths`, descending, as vLLM's list of (first batch size, last batch size, length).

    Each length except the last gets few and small batch sizes, since vLLM captures further sizes for the largest one.
    """
    count = len(lengths)
    ends = [min(1 << i, max_num_seqs - (count - 1 - i)) for i in range(count - 1)] + [max_num_seqs]
    return [(first + 1, last, length) for first, last, length in zip([0, *ends], ends, lengths, strict=False)]


def set_capture_lengths(vllm_config: Any) -> None:
    """Fill in the list of captured lengths if the engine captures graphs and the launch lists none.

    The server's maximum draft length becomes the longest of them, which is at most the configured one; vLLM's own
    drafter keeps the configured one.  Data-parallel ranks that step together have one length; vLLM drops the list of a
    launch with data parallelism before this is called, although the ranks of a dense model are engines of their own.
    """
    spec = vllm_config.speculative_config
    largest = vllm_config.scheduler_config.max_num_seqs
    if spec.num_speculative_tokens_per_batch_size or has_lockstep_ranks(vllm_config):
        return
    lengths = (power_lengths if has_proposers(vllm_config) else dividing_lengths)(spec.num_speculative_tokens)
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


def captured_lengths(vllm_config: Any) -> dict[int, int]:
    """Return the draft lengths with full CUDA graphs, descending, and the most requests covered at each."""
    if not _captures_by_length(vllm_config):
        return {}
    spec = vllm_config.speculative_config
    largest = vllm_config.scheduler_config.max_num_seqs
    named = spec.num_speculative_tokens_per_batch_size or [(1, largest, spec.num_speculative_tokens)]
    lengths = {min(int(length), spec.num_speculative_tokens) for first, _, length in named if first <= largest}
    tokens = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    return {length: min(tokens // (length + 1), largest) for length in sorted(lengths, reverse=True)}


def describe_loss(before: Mapping[int, int], vllm_config: Any) -> str:
    """Return a warning if vLLM has turned full CUDA graphs off since they were `captured` as `before`, otherwise "".

    It does so for all steps, for example once it knows that the attention backend has graphs of single tokens only.
    """
    if not before or captured_lengths(vllm_config):
        return ""
    mode = vllm_config.compilation_config.cudagraph_mode.name
    return (
        f"vLLM has turned full CUDA graphs off for all steps, those without drafts too (cudagraph_mode is now {mode}), "
        "as it does where the attention backend has none for several tokens of a request; its own warning says why. "
        "Compare with another --attention-backend, or with no speculation, by `specplug bench`"
    )


def _fit_sizes(vllm_config: Any) -> None:
    """Round the sizes that vLLM chose up to multiples of 1 + the maximum draft length, if several are captured.

    The largest multiple that a full batch exceeds at each length is added, as a size for more requests than a server
    holds is not captured.
    """
    spec = vllm_config.speculative_config
    compilation = vllm_config.compilation_config
    if not spec.num_speculative_tokens_per_batch_size or not _captures_by_length(vllm_config):
        return
    tokens = spec.num_speculative_tokens + 1
    scheduler = vllm_config.scheduler_config
    sizes = {-(-size // tokens) * tokens for size in compilation.cudagraph_capture_sizes}
    for _, _, length in spec.num_speculative_tokens_per_batch_size:
        sizes.add(scheduler.max_num_seqs * (length + 1) // tokens * tokens)
    max_size = min(scheduler.max_num_batched_tokens, compilation.max_cudagraph_capture_size)
    fitting = sorted(size for size in sizes if 0 < size <= max_size)
    if fitting:
        compilation.cudagraph_capture_sizes = fitting
        compilation.max_cudagraph_capture_size = fitting[-1]
        compilation.post_init_cudagraph_sizes()


def _captures_by_length(vllm_config: Any) -> bool:
    """Return whether V2 captures full graphs in addition to piecewise ones, each for one draft length."""
    mode = vllm_config.compilation_config.cudagraph_mode
    return runner_of(vllm_config) == "v2" and not cuts_on_device(vllm_config) and bool(mode.separate_routine())


def _lower(vllm_config: Any, length: int) -> None:
    """Lower the server's maximum draft length, also in specplug's settings if they repeat it."""
    key = "num_speculative_tokens"
    vllm_config.speculative_config.num_speculative_tokens = length
    settings = vllm_config.additional_config
    if isinstance(settings, dict) and key in settings.get(SECTION, {}):
        vllm_config.additional_config = {**settings, SECTION: {**settings[SECTION], key: length}}
