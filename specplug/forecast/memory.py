"""Memory of a draft model: its weights, and its KV cache for every request in flight."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specplug.forecast.step_cost import RooflineCost


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a model; with tensor parallelism `per_gpu` is what each GPU holds.

    Attributes:
        name: the model's folder.
        parameters: number of weights.
        weights: bytes of the weights.
        kv_per_token: bytes of KV cache per token of context.
        kv_cache: bytes of KV cache for a whole batch.
        per_gpu: bytes of weights and KV cache on each GPU.
    """

    name: str
    parameters: int
    weights: float
    kv_per_token: float
    kv_cache: float
    per_gpu: float

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes ready for JSON."""
        return asdict(self)


def model_memory(cost: RooflineCost, batch: int) -> ModelMemory:
    """Return the memory of a step cost's model for `batch` requests of its context."""
    shape, parallel = cost.shape, cost.tensor_parallel
    weights, kv_per_token = shape.parameters * cost.weight_bits / 8, shape.kv_elements * cost.kv_bits / 8
    cache = batch * cost.context * kv_per_token
    per_gpu = weights / parallel + cache / min(parallel, shape.kv_heads)
    return ModelMemory(shape.name, shape.parameters, weights, kv_per_token, cache, per_gpu)
