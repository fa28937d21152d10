"""Attention backends, and on a GPU captured graph runners, one per draft length.

A backend fixes the number of verified tokens per request when it is built, so a step with shorter drafts needs another
one; SGLang's adaptive speculation does the same.  Unlike there, all of them share a workspace and the buffers of their
graphs.  Draft lengths are counted in nodes here, the root included; steps that decode without verification are counted
as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from sglang.srt.runtime_context import get_context, get_exec, get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specplug.errors import EngineError
from specplug_sglang.config import needed_batches
from specplug_sglang.verification.attention import GraphBuffers

DECODING = 0
"""SGLang's own decoding, without nodes."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """Attention backend and graph runner of one draft length; the runner is None if the step runs eagerly."""

    attention: Any
    graphs: Any


class DraftLengths:
    """Swaps the target's machinery for a step.

    Args:
        model_runner: the target's.
        widest: nodes per request that the engine's own backend was built for, the maximum.

    Attributes:
        seconds, bytes_taken: time and device memory that `prepare` took.
    """

    def __init__(self, model_runner: Any, widest: int) -> None:
        self._runner = model_runner
        self._widest = widest
        self._built: dict[int, Machinery] = {}
        self._buffers = GraphBuffers()
        self._limits = ExitStack()
        self.seconds = 0.0
        self.bytes_taken = 0

    def limit_engine(self, nodes: Mapping[int, int]) -> None:
        """Let SGLang capture the maximum for the batches that need it, until `prepare`; arguments as there.

        SGLang sizes the logits that all graphs write by the maximum and the largest batch, so they are limited too.
        """
        config = get_exec().graph.cuda_graph_config
        wanted = {self._widest: 0, **nodes}
        if not nodes or config is None or not config.decode.bs:
            return
        rows = max(max(n, 1) * (needed_batches(config.decode.bs, batch) or [0])[-1] for n, batch in wanted.items())
        self._limits.enter_context(_as_if_batches_ended_at(wanted[self._widest]))
        self._runner.max_decode_logits_rows = lambda: rows
        self._limits.callback(delattr, self._runner, "max_decode_logits_rows")

    def prepare(self, nodes: Mapping[int, int]) -> None:
        """Build draft lengths in advance, with graphs for the largest batch of each, by nodes per request.

        Those of most nodes come first, as all share their memory.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        self._limits.close()
        refuse_fused_accept(self._runner.attn_backend)
        self._buffers.share(self._runner.attn_backend)
        for n in sorted(nodes, key=lambda n: max(n, 1) * nodes[n], reverse=True):
            if n != self._widest and n not in self._built and (n != DECODING or self._captures):
                began = perf_counter()
                free = self._free()
                with _as_if_batches_ended_at(nodes[n]):
                    self._built[n] = self._build(n, captured=True)
                self.seconds += perf_counter() - began
                self.bytes_taken += free - self._free()

    def backends(self) -> list[Any]:
        """Return the attention backends built so far, without the engine's own."""
        return [machinery.attention for machinery in self._built.values()]

    @contextmanager
    def using(self, n: int) -> Iterator[None]:
        """Make the target verify `n` nodes per request within the context, or decode for `DECODING`."""
        if n == self._widest or (n == DECODING and not self._captures):
            yield
            return
        if n not in self._built:
            self._built[n] = self._build(n, captured=False)
        runner = self._runner
        mine = self._built[n]
        default = (runner.attn_backend, runner.decode_cuda_graph_runner)
        runner.attn_backend = mine.attention
        runner.decode_cuda_graph_runner = mine.graphs
        try:
            yield
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner = default

    @property
    def _captures(self) -> bool:
        """Whether the engine captures graphs; eagerly, its own backend decodes too."""
        return getattr(self._runner, "decode_cuda_graph_runner", None) is not None

    def _free(self) -> int:
        """Return the free bytes of a GPU; 0 elsewhere, as nothing is captured there."""
        device = torch.device(self._runner.device)
        if device.type != "cuda":
            return 0
        torch.cuda.empty_cache()  # which holds what shared buffers have replaced
        return int(torch.cuda.mem_get_info(device)[0])

    def _build(self, n: int, *, captured: bool) -> Machinery:
        """Build `n` nodes; a length that no plan was expected to choose is not `captured`, as requests would wait."""
        # Without an algorithm, a runner's graphs and backends are those of decoding.
        hidden = _replaced(self._runner, "spec_algorithm", SpeculativeAlgorithm.NONE)
        with _as_if_launched_with(n), hidden if n == DECODING else nullcontext():
            attention = self._runner._get_attention_backend()  # its workspace is the engine's
            return Machinery(attention, self._graphs(attention, n) if captured and self._captures else None)

    def _graphs(self, attention: Any, n: int) -> Any:
        default = self._runner.decode_cuda_graph_runner
        self._buffers.share_when_allocated(attention)
        if n == DECODING:
            return type(default)(self._runner, attn_backend=attention)
        return type(default)(
            self._runner, attn_backend=attention, speculative_num_steps=max(1, n - 1), speculative_num_draft_tokens=n
        )


def refuse_fused_accept(attention: Any) -> None:
    """Refuse KDA's fused accept (`EngineError`).

    Its steps start from a state in the last positions of the previous step, which one with fewer nodes cannot reach.
    """
    linear = getattr(attention, "linear_attn_backend", None)
    if getattr(linear, "accept_lens_pool", None) is None:
        return
    raise EngineError.build(
        "KDA's fused accept needs the same draft length in every step",
        who="specplug_sglang",
        found="--linear-attn-verify-backend flashinfer, --disable-radix-cache",
        expected="states that are committed after each step",
        remedy="Start without --disable-radix-cache, or with --linear-attn-verify-backend triton",
    )


@contextmanager
def _as_if_launched_with(n: int) -> Iterator[None]:
    """Override the number of draft tokens in SGLang's settings while a backend is built; `DECODING` removes it."""
    changed: dict[str, Any] = {
        "speculative_num_steps": max(1, n - 1) if n else None,
        "speculative_num_draft_tokens": n or None,
    }
    if n == DECODING:
        changed |= {"speculative_algorithm": None, "speculative_eagle_topk": None}
    default = {name: getattr(get_spec(), name) for name in changed}
    get_context().override("specplug.draft_length", **changed)
    try:
        yield
    finally:
        get_context().override("specplug.restore", **default)


def _as_if_batches_ended_at(largest: int) -> AbstractContextManager[None]:
    """Override the batch sizes that SGLang captures, so that none is larger than `largest` needs."""
    config = get_exec().graph.cuda_graph_config
    if config is None:
        return nullcontext()
    return _replaced(config.decode, "bs", needed_batches(config.decode.bs, largest))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    default = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, default)
