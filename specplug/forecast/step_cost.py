"""Cost of a target step, by a roofline of the model on its GPUs or by the number of tokens at which they saturate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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

    It leaves out launches, sampling and communication between GPUs, and assumes peak rates.

    Attributes:
        context: tokens of context per request, the same for all.
        weight_bits, kv_bits: bits per weight and per element of the KV cache.
        tensor_parallel: GPUs that share the weights, and the KV cache as far as its heads go.
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
