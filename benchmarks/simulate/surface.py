"""Cost surface: the seconds of one engine step, from the bytes, arithmetic and kernel launches that it takes.

Each part of a step (dense matrices, experts, attention, logits) takes the p-norm of its memory time and its arithmetic
time, which rounds the corner of a roofline; parts add up.  Launches on the host overlap with the device in the same
way.  Nothing here is fitted to a measurement: the figures are data sheets' times a share that kernels reach.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
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
    """The work of one step.

    Attributes:
        rows: requests that decode.
        tokens: tokens that the target runs for them: one each, draft tokens, and all padding.
        context_tokens: their context tokens before the step.
        draft_length: draft tokens per row that the step was planned for; 0 is plain decoding.
        regime: how kernels are launched.
        prefill_tokens: prompt tokens.
        prefill_pairs: the sum over prompt tokens of the tokens that each attends to.
        changed: whether the draft length differs from the step before.
        missed: tokens that the proposer has not ingested yet, as the steps before had a draft length of 0.
    """

    rows: int
    tokens: int
    context_tokens: int
    draft_length: int = 0
    regime: Regime = Regime.UNIFORM
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    changed: bool = False
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, and the group that shares a model.

    Attributes:
        bandwidth: bytes per second that kernels reach.
        arithmetic: floating-point operations per second that large matrix products reach.
        ranks: tensor-parallel ranks.
        reduce_seconds: latency of one all-reduce; there are two per layer if there are several ranks.
        link: bytes per second of an all-reduce.
        sharpness: p of the p-norm; the higher, the sharper the corner between memory and arithmetic.
    """

    bandwidth: float = 3.9e12
    arithmetic: float = 5.9e14
    ranks: int = 1
    reduce_seconds: float = 9e-6
    link: float = 3.5e11
    sharpness: float = 3.0

    def overlapped(self, one: float, other: float) -> float:
        """Return the time of two activities that overlap."""
        longest = max(one, other)
        if not longest:
            return 0.0
        return longest * math.pow(1 + math.pow(min(one, other) / longest, self.sharpness), 1 / self.sharpness)


@dataclass(frozen=True, slots=True)
class Experts:
    """The expert matrices of a mixture of experts, in all layers together.

    Attributes:
        count, per_token: experts of a layer, and those that one token is routed to.
        parameters: parameters of one expert, summed over the layers.
        diversity: share of the experts of a further token of a row that the row's other tokens do not already use.
    """

    count: int
    per_token: int
    parameters: float
    diversity: float = 0.7

    def touched(self, rows: float, tokens: float) -> float:
        """Return the expected number of experts of a layer that a batch reads, for tokens routed at random."""
        independent = rows + self.diversity * (tokens - rows)
        return self.count * (1 - math.pow(1 - self.per_token / self.count, independent))


@dataclass(frozen=True, slots=True)
class Model:
    """The dimensions of a target model.

    Attributes:
        layers, hidden, vocab: number of layers, hidden size, vocabulary size.
        parameters: parameters that every token uses, without experts and the output matrix.
        heads, kv_heads, head_dim: of attention.
        weight_bytes, kv_bytes: bytes of a parameter, and of a number in the key-value cache.
        experts: the experts; None for a dense model.
    """

    layers: int
    hidden: int
    vocab: int
    parameters: float
    heads: int
    kv_heads: int
    head_dim: int = 128
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Time outside the target's kernels, in seconds.

    Attributes:
        step, per_row: scheduling, sampling and streaming that do not overlap with the device.
        layer_launch: launch time of one layer, by regime: gaps between kernels within a captured graph, and time of
            the host, which overlaps with the device, otherwise.
        speculation, per_draft_token: rejection sampling and metadata of a step with drafts, fixed and for each token.
        drafting, drafting_per_row, drafting_per_position: the proposer's time, fixed, for each row, and for each
            position in turn, as a draft model takes it.
        idle: the proposer's time in a step of draft length 0, as a draft model takes it to keep its cache in step.
        change: switching to another draft length.
        catch_up: ingesting one token that was missed at draft length 0.
    """

    step: float = 3e-4
    per_row: float = 4e-6
    layer_launch: tuple[float, float, float, float] = (3e-6, 3.4e-6, 2.6e-5, 1.1e-4)
    speculation: float = 1.5e-4
    per_draft_token: float = 6e-7
    drafting: float = 1.0e-4
    drafting_per_row: float = 2e-6
    drafting_per_position: float = 0.0
    idle: float = 0.0
    change: float = 5e-5
    catch_up: float = 1.5e-7


TILE = 64
"""Rows of a matrix product's tile: products of fewer take as much arithmetic."""

EXPERT_TILE = 16
"""The same of one expert's product, of which half is wasted on average."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The seconds of a step on one server.

    Attributes:
        name: name of the surface.
        summary: one line on what it models.
        held_out: whether it is set aside for the final assessment, and must not be used to tune a policy.
    """

    name: str
    summary: str
    model: Model
    device: Device = field(default_factory=Device)
    host: Host = field(default_factory=Host)
    held_out: bool = False

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
