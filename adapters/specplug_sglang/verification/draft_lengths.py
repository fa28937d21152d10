"""Attention backends, and on a GPU captured graph runners, one per draft length.

A backend fixes the number of verified tokens per request when it is built, so a step with shorter drafts needs another
one; SGLang's adaptive speculation does the same.  Draft lengths are counted in nodes here, the root included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sglang.srt.runtime_context import get_context, get_spec

from specplug.errors import EngineError


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
    """

    def __init__(self, model_runner: Any, widest: int) -> None:
        self._runner, self._widest = model_runner, widest
        self._built: dict[int, Machinery] = {}

    def prepare(self, nodes: tuple[int, ...]) -> None:
        """Build draft lengths in advance, so that no request waits for it; longest first, as graphs share memory.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        refuse_fused_accept(self._runner.attn_backend)
        for n in sorted(nodes, reverse=True):
            if n != self._widest and n not in self._built:
                self._built[n] = self._build(n)

    def captured(self) -> list[int]:
        """Return the draft lengths, in nodes, that run as captured graphs, ascending."""
        graphs = {n: machinery.graphs for n, machinery in self._built.items()}
        graphs[self._widest] = getattr(self._runner, "decode_cuda_graph_runner", None)
        return sorted(n for n, runner in graphs.items() if runner is not None)

    def backends(self) -> list[Any]:
        """Return the attention backends built so far, without the engine's own."""
        return [machinery.attention for machinery in self._built.values()]

    @contextmanager
    def using(self, n: int) -> Iterator[None]:
        """Make the target verify `n` nodes per request within the context."""
        if n == self._widest:
            yield
            return
        if n not in self._built:
            self._built[n] = self._build(n)
        runner, mine = self._runner, self._built[n]
        default = (runner.attn_backend, runner.decode_cuda_graph_runner)
        runner.attn_backend, runner.decode_cuda_graph_runner = mine.attention, mine.graphs
        try:
            yield
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner = default

    def _build(self, n: int) -> Machinery:
        with _as_if_launched_with(n):
            fresh = self._runner.init_new_workspace
            try:
                attention = self._runner._get_attention_backend(init_new_workspace=True)
            finally:
                self._runner.init_new_workspace = fresh
            return Machinery(attention, self._graphs(attention, n))

    def _graphs(self, attention: Any, n: int) -> Any:
        """Capture `n` nodes with the class of the engine's own graph runner; None if the engine captures nothing."""
        default = getattr(self._runner, "decode_cuda_graph_runner", None)
        if default is None:
            return None
        return type(default)(
            self._runner, attn_backend=attention, speculative_num_steps=max(1, n - 1), speculative_num_draft_tokens=n
        )


def refuse_fused_accept(attention: Any) -> None:
    """Refuse KDA's fused accept, whose steps start from a state that the previous step left in its last positions.

    Raises:
        EngineError: the backend accepts that way; a step with fewer nodes could not reach that state.
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
    """Override the number of draft tokens in SGLang's settings while a backend is built."""
    spec = get_spec()
    default = {
        "speculative_num_steps": spec.speculative_num_steps,
        "speculative_num_draft_tokens": spec.speculative_num_draft_tokens,
    }
    changed = {"speculative_num_steps": max(1, n - 1), "speculative_num_draft_tokens": n}
    get_context().override("specplug.draft_length", **changed)
    try:
        yield
    finally:
        get_context().override("specplug.restore", **default)
