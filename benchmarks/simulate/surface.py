"""Cost surface: the seconds of one engine step, from the bytes, arithmetic and kernel launches that it takes.

Each part of a step (dense matrices, experts, attention, logits) takes the p-norm of its memory time and its arithmetic
time, which rounds the corner of a roofline; parts add up.  Launches on the host overlap with the device in the same
way.  Nothing here is fitted to a measurement: the figures are data sheets' times a share that kernels reach.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple


class Regime(enum.IntEnum):
    """How a step's kernels are launched, fastest first."""

    UNIFORM = 0
    """One captured graph, all rows equally long."""
    MIXED = 1
    """One captured graph for rows of any length."""
    PIECEWISE = 2
    """Captured pieces between the attention calls."""
    EAGER = 3
    """Kernel by kernel."""


class StepWork(NamedTuple):
    """The work of one step."""

    rows: int  # requests that decode
    tokens: int  # tokens that the target runs for them: one each, draft tokens, and all padding
    context_tokens: int  # their context tokens before the step
    draft_length: int = 0  # draft tokens per row that the step was planned for; 0 is plain decoding
    regime: Regime = Regime.UNIFORM
    prefill_tokens: int = 0  # prompt tokens
    prefill_pairs: int = 0  # the sum over prompt tokens of the tokens that each attends to
    changed: bool = False  # whether the draft length differs from the step before
    missed: int = 0  # tokens that the proposer has not ingested yet, after steps of draft length 0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, and the group that shares a model."""

    bandwidth: float = 3.9e12  # bytes per second that kernels reach
    arithmetic: float = 5.9e14  # floating-point operations per second that large matrix products reach
    ranks: int = 1  # tensor-parallel ranks
    reduce_seconds: float = 9e-6  # latency of one all-reduce; there are two per layer if there are several ranks
    link: float = 3.5e11  # bytes per second of an all-reduce
    sharpness: float = 3.0  # p of the p-norm; the higher, the sharper the corner between memory and arithmetic

    def overlapped(self, one: float, other: float) -> float:
        """Return the time of two activities that overlap."""
        longest = max(one, other)
        if not longest:
            return 0.0
        return longest * math.pow(1 + math.pow(min(one, other) / longest, self.sharpness), 1 / self.sharpness)


@dataclass(frozen=True, slots=True)
class Experts:
    """The expert matrices of a mixture of experts, in all layers together."""

    count: int  # experts of a layer
    per_token: int  # those that one token is routed to
    parameters: float  # parameters of one expert, summed over the layers
    diversity: float = 0.7  # share of a further token's experts that its row's other tokens do not already use

    def touched(self, rows: float, tokens: float) -> float:
        """Return the expected number of experts of a layer that a batch reads, for tokens routed at random."""
        independent = rows + self.diversity * (tokens - rows)
        return self.count * (1 - math.pow(1 - self.per_token / self.count, independent))


@dataclass(frozen=True, slots=True)
class Model:
    """The dimensions of a target model."""

    layers: int
    hidden: int
    vocab: int
    parameters: float  # parameters that every token uses, without experts and the output matrix
    heads: int
    kv_heads: int
    head_dim: int = 128
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0  # of a number in the key-value cache
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Time outside the target's kernels, in seconds."""

    step: float = 3e-4  # scheduling, sampling and streaming that do not overlap with the device
    per_row: float = 4e-6
    # Launch of one layer, by regime: gaps between kernels within a captured graph, and otherwise time of the host,
    # which overlaps with the device.
    layer_launch: tuple[float, float, float, float] = (3e-6, 3.4e-6, 2.6e-5, 1.1e-4)
    speculation: float = 1.5e-4  # rejection sampling and metadata of a step with drafts
    per_draft_token: float = 6e-7
    drafting: float = 1.0e-4  # the proposer's time
    drafting_per_row: float = 2e-6
    drafting_per_position: float = 0.0  # as a draft model takes it, position after position
    idle: float = 0.0  # the proposer's time in a step of draft length 0, as a draft model takes it for its cache
    change: float = 5e-5  # switching to another draft length
    catch_up: float = 1.5e-7  # ingesting one token that was missed at draft length 0


TILE = 64
"""Rows of a matrix product's tile: products of fewer take as much arithmetic."""

EXPERT_TILE = 16
"""The same of one expert's product, of which half is wasted on average."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The seconds of a step on one server."""

    name: str
    model: Model
    device: Device = Device()
    host: Host = Host()

    def seconds(self, work: StepWork) -> float:
        """Return the time of a step, without noise.  It never falls when there is more work of any kind."""
        if not work.tokens and not work.prefill_tokens:
            return 0.0
        return self.forward_seconds(work) + self.host_seconds(work)

    def forward_seconds(self, work: StepWork) -> float:
        """Return the time of the target's kernels and their launches."""
        launches = self.host.layer_launch
        device = self._kernels(work) + self.model.layers * launches[min(work.regime, Regime.MIXED)]
        if work.regime > Regime.MIXED:
            device = self.device.overlapped(device, self.model.layers * launches[work.regime])
        return device + self._reductions(work)

    def host_seconds(self, work: StepWork) -> float:
        """Return the time of host and proposer that no kernel of the target covers."""
        host, rows = self.host, work.rows
        total = host.step + host.per_row * rows + host.change * work.changed
        if not work.draft_length:
            return total + host.idle * (rows > 0)
        total += host.speculation + host.per_draft_token * work.tokens + host.catch_up * work.missed
        return total + host.drafting + host.drafting_per_row * rows + host.drafting_per_position * work.draft_length

    def _kernels(self, work: StepWork) -> float:
        model, ranks = self.model, self.device.ranks
        tokens = work.tokens + work.prefill_tokens
        tiled = math.ceil(tokens / TILE) * TILE
        weights = model.parameters * model.weight_bytes / ranks
        dense = self._part(weights, 2 * model.parameters * tiled / ranks)
        output = model.vocab * model.hidden
        logits = work.tokens + (work.prefill_tokens > 0)
        head = self._part(output * model.weight_bytes / ranks, 2 * output * logits / ranks)
        return dense + head + self._attention(work) + self._experts(work, tokens)

    def _attention(self, work: StepWork) -> float:
        model, ranks = self.model, self.device.ranks
        cached = 2 * model.kv_heads * model.head_dim * model.layers * model.kv_bytes / ranks
        pairs: float = work.prefill_pairs
        if work.rows:
            pairs += work.context_tokens * work.tokens / work.rows
        keys = work.context_tokens + work.tokens + work.prefill_tokens
        return self._part(cached * keys, 4 * model.heads * model.head_dim * model.layers * pairs / ranks)

    def _experts(self, work: StepWork, tokens: int) -> float:
        experts = self.model.experts
        if experts is None:
            return 0.0
        touched = experts.touched(work.rows + work.prefill_tokens, tokens)
        rows = tokens * experts.per_token + touched * EXPERT_TILE / 2
        size = experts.parameters / self.device.ranks
        return self._part(touched * size * self.model.weight_bytes, 2 * size * rows)

    def _part(self, size: float, operations: float) -> float:
        """Return the time of kernels that move `size` bytes and take so many operations."""
        return self.device.overlapped(size / self.device.bandwidth, operations / self.device.arithmetic)

    def _reductions(self, work: StepWork) -> float:
        device, model = self.device, self.model
        if device.ranks == 1:
            return 0.0
        size = (work.tokens + work.prefill_tokens) * model.hidden * 2
        return 2 * model.layers * (device.reduce_seconds + size / device.link)


LLAMA_8B = Model(layers=32, hidden=4096, vocab=128_256, parameters=7.0e9, heads=32, kv_heads=8)
LLAMA_70B = Model(layers=80, hidden=8192, vocab=128_256, parameters=68.5e9, heads=64, kv_heads=8)
QWEN_30B_A3B = Model(
    layers=48,
    hidden=2048,
    vocab=151_936,
    parameters=0.9e9,
    heads=32,
    kv_heads=4,
    experts=Experts(count=128, per_token=8, parameters=48 * 3 * 2048 * 768),
)
MISTRAL_24B_FP8 = Model(
    layers=40, hidden=5120, vocab=131_072, parameters=22.3e9, heads=32, kv_heads=8, weight_bytes=1.0, kv_bytes=1.0
)
GLM_106B_A12B = Model(
    layers=46,
    hidden=4096,
    vocab=151_552,
    parameters=4.5e9,
    heads=96,
    kv_heads=8,
    weight_bytes=1.0,
    experts=Experts(count=128, per_token=8, parameters=45 * 3 * 4096 * 1408, diversity=0.85),
)

SURFACES = {
    surface.name: surface
    for surface in (
        Surface("h200-8b", LLAMA_8B),
        Surface("h200-70b-tp4", LLAMA_70B, Device(ranks=4)),
        Surface("h200-moe-30b", QWEN_30B_A3B),
        # Synchronous scheduling, and a proposer on the host without a stream.
        Surface(
            "h200-24b-fp8-sync",
            MISTRAL_24B_FP8,
            Device(arithmetic=9.6e14, sharpness=2.2),
            Host(step=1.4e-3, per_row=1.1e-5, speculation=4e-4, drafting=3e-4, drafting_per_row=7e-6, change=0.0),
        ),
        # A draft model, which takes time in steps without drafts too.
        Surface(
            "h200-moe-106b-tp2-model",
            GLM_106B_A12B,
            Device(arithmetic=8.0e14, ranks=2, sharpness=4.5),
            Host(drafting=2e-4, drafting_per_position=2.2e-4, idle=3.5e-4, change=2e-4, catch_up=1.5e-6),
        ),
    )
}
"""Servers on NVIDIA H200 with models of common dimensions, all simulated."""

HELD_OUT = ("h200-24b-fp8-sync", "h200-moe-106b-tp2-model")
"""Surfaces to assess a finished policy on: whoever tunes on them loses the only check against overfitting."""
