"""Speed-up over decoding without drafts, by batch size and draft length, from acceptance and the cost of a step.

That cost follows from a roofline of the model on its GPUs, or from the number of tokens at which they saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from specplug.forecast.acceptance import DraftAcceptance, acceptance_for
from specplug.forecast.model_shape import ModelShape


class Gpu(NamedTuple):
    """Peak rates of one GPU: memory bandwidth in bytes/s, dense bfloat16 arithmetic in operations/s."""

    bandwidth: float
    flops: float


GPUS = {
    "a100": Gpu(2.039e12, 312e12),  # A100 80GB SXM
    "b200": Gpu(7.7e12, 2250e12),  # HGX B200; 4,500 with sparsity
    "h100": Gpu(3.35e12, 989e12),  # H100 SXM; 1,979 with sparsity
    "h200": Gpu(4.8e12, 989e12),  # H200 SXM; 1,979 with sparsity
    "l4": Gpu(0.3e12, 121e12),
    "l40s": Gpu(0.864e12, 362e12),
    "mi300x": Gpu(5.3e12, 1307e12),
}
"""Figures of the vendors' data sheets, without structured sparsity, for which these state twice the arithmetic."""


@dataclass(frozen=True, slots=True)
class SaturationCost:
    """A step costs 1 up to `saturation` tokens, and grows in proportion beyond: the model of the policy `batch`."""

    saturation: float = 256.0  # as the policy `batch` assumes

    def step(self, batch: int, tokens: float) -> float:
        """Return the cost of `batch` requests, each with its draft tokens and one more, in steps of a small batch."""
        return max(1.0, batch * tokens / self.saturation)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a model; with tensor parallelism `per_gpu` is what each GPU holds.

    `parameters` is the number of weights, `kv_per_token` the cache per token of context, and `kv_cache` that of a whole
    batch.
    """

    name: str
    parameters: int
    weights: float
    kv_per_token: float
    kv_cache: float
    per_gpu: float


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A step takes as long as reading weights and KV cache, or as its arithmetic, whichever is longer.

    It leaves out launches, sampling and communication between GPUs, and assumes peak rates.  All requests have
    `context` tokens of context.  `tensor_parallel` GPUs share the weights, and the KV cache as far as its heads go.
    """

    shape: ModelShape
    gpu: Gpu
    context: int
    weight_bits: float
    kv_bits: float
    tensor_parallel: int = 1

    def step(self, batch: int, tokens: float) -> float:
        """Return the time in seconds of `batch` requests, each with its draft tokens and one more."""
        return max(self.bytes_read(batch, tokens) / self.gpu.bandwidth, self.flops(batch, tokens) / self.gpu.flops)

    def bytes_read(self, batch: int, tokens: float) -> float:
        """Return the bytes that each GPU reads: the weights once, and the KV cache of every request once."""
        weights = self.shape.parameters_read(batch * tokens) * self.weight_bits / 8 / self.tensor_parallel
        cache = batch * self.context * self.shape.kv_elements * self.kv_bits / 8
        return weights + cache / min(self.tensor_parallel, self.shape.kv_heads)

    def flops(self, batch: int, tokens: float) -> float:
        """Return the floating-point operations of each GPU."""
        per_token = 2 * self.shape.active_parameters + self.context * self.shape.attention_flops
        return batch * tokens * per_token / self.tensor_parallel

    def memory(self, batch: int) -> ModelMemory:
        """Return the memory of the model for `batch` requests of the context."""
        shape = self.shape
        weights, kv_per_token = shape.parameters * self.weight_bits / 8, shape.kv_elements * self.kv_bits / 8
        cache = batch * self.context * kv_per_token
        per_gpu = weights / self.tensor_parallel + cache / min(self.tensor_parallel, shape.kv_heads)
        return ModelMemory(shape.name, shape.parameters, weights, kv_per_token, cache, per_gpu)


CostModel = SaturationCost | RooflineCost
"""A cost of target steps, in a unit of its own."""


@dataclass(frozen=True, slots=True)
class DraftLengthForecast:
    """Forecast for at most `gamma` draft tokens per request and step, 0 of them being without speculation.

    A request's step emits `tau` tokens, bonus included, and computes `tokens`.  Its `cost`, drafting included, is in
    steps without drafts, and `speedup` is `tau` / `cost`.
    """

    gamma: int
    tau: float
    tokens: float
    cost: float
    speedup: float


@dataclass(frozen=True, slots=True)
class BatchForecast:
    """Forecast for one batch size, requests that decode together, by draft length from 0.

    Attributes:
        plain_step: cost of a step without drafts, in the unit of the step cost.
        draft_cost: cost of drafting one token for each request, in steps without drafts.
        break_even: the least probability alpha, the same at every position of full drafts, above which some draft
            length gains; None if none does even at 1.
    """

    batch: int
    plain_step: float
    draft_cost: float
    break_even: float | None
    lengths: tuple[DraftLengthForecast, ...]

    @property
    def best(self) -> DraftLengthForecast:
        """The draft length with the highest speed-up, the shortest of equals."""
        return max(self.lengths, key=lambda each: each.speedup)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast ready for JSON."""
        return {**asdict(self), "best": asdict(self.best)}


def forecast(
    acceptance: DraftAcceptance,
    target: CostModel,
    batches: Sequence[int],
    gamma: int,
    *,
    draft_cost: Callable[[int], float],
    overhead: float = 0.0,
) -> list[BatchForecast]:
    """Return the forecast for each batch size, for draft lengths up to `gamma`, or as far as the acceptance reaches.

    `draft_cost` is that of one token for each request of a batch, and `overhead` the fixed cost of drafting per step,
    both in steps of this batch without drafts.
    """
    longest = min(gamma, acceptance.longest)
    return [_of_batch(acceptance, target, batch, longest, draft_cost(batch), overhead) for batch in batches]


def _of_batch(
    acceptance: DraftAcceptance, target: CostModel, batch: int, longest: int, draft_cost: float, overhead: float
) -> BatchForecast:
    plain = target.step(batch, 1)

    def cost(gamma: int, tokens: float) -> float:
        drafting = acceptance.drafted_by_model(gamma) * draft_cost + overhead
        return target.step(batch, tokens) / plain + (drafting if gamma else 0.0)

    lengths = []
    for gamma in range(longest + 1):
        tau, tokens = acceptance.tau(gamma), acceptance.tokens(gamma)
        ratio = cost(gamma, tokens)
        lengths.append(DraftLengthForecast(gamma, tau, tokens, ratio, tau / ratio))
    needed = [acceptance_for(cost(gamma, gamma + 1), gamma) for gamma in range(1, longest + 1)]
    break_even = min((alpha for alpha in needed if alpha is not None), default=None)
    return BatchForecast(batch, plain, draft_cost, break_even, tuple(lengths))
