"""Speed-up over decoding without drafts, by batch size and draft length, from acceptance and the cost of a step.

A cost is a function of the requests of a step, the tokens that the target runs for each, and the draft length, in a
unit of its own.  It was measured by a server, or follows from a roofline of the model on its GPUs, or from the number
of tokens at which they saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from specplug.tools.forecast.acceptance import DraftAcceptance, acceptance_for

if TYPE_CHECKING:
    from specplug.tools.forecast.model_shape import ModelShape  # imports torch
    from specplug.types.step import StepCost

CostModel = Callable[[int, float, int], float]


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


def saturation_cost(saturation: float = 256.0) -> CostModel:
    """Return a cost of 1 up to so many tokens, and in proportion beyond, as `batch` assumes where nothing is known."""
    return lambda batch, tokens, gamma: max(1.0, batch * tokens / saturation)


def measured_cost(costs: Sequence[StepCost], context: int) -> CostModel:
    """Return the seconds of steps by the policies' own estimate, from steps that a server measured."""
    from specplug.cost import StepCosts  # imports torch

    estimate: Any = StepCosts(lambda tokens: tokens)  # which takes fractions of tokens, too
    estimate.calibrate(costs)
    return lambda batch, tokens, gamma: float(estimate.seconds(batch, batch * context, [batch * tokens], [gamma])[0])


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

    def step(self, batch: int, tokens: float, gamma: int = 0) -> float:
        """Return the time in seconds of `batch` requests: weights are read once, and the KV cache of every request."""
        per_token = 2 * self.shape.active_parameters + self.context * self.shape.attention_flops
        arithmetic = batch * tokens * per_token / self.tensor_parallel / self.gpu.flops
        return max(self._per_gpu(self.shape.parameters_read(batch * tokens), batch) / self.gpu.bandwidth, arithmetic)

    def memory(self, batch: int) -> dict[str, Any]:
        """Return the bytes of the weights, of the KV cache per token and for `batch` requests, and of both per GPU."""
        shape = self.shape
        kv_per_token = self.shape.kv_elements * self.kv_bits / 8
        return {
            "name": shape.name,
            "parameters": shape.parameters,
            "weights": shape.parameters * self.weight_bits / 8,
            "kv_per_token": kv_per_token,
            "kv_cache": batch * self.context * kv_per_token,
            "per_gpu": self._per_gpu(shape.parameters, batch),
        }

    def _per_gpu(self, parameters: float, batch: int) -> float:
        """Return the bytes of so many weights, and of a batch's KV cache, that each GPU has."""
        cache = batch * self.context * self.shape.kv_elements * self.kv_bits / 8
        weights = parameters * self.weight_bits / 8 / self.tensor_parallel
        return weights + cache / min(self.tensor_parallel, self.shape.kv_heads)


def forecast(
    acceptance: DraftAcceptance,
    step: CostModel,
    batches: Sequence[int],
    gamma: int,
    *,
    draft_cost: Callable[[int], float],
    overhead: float = 0.0,
    padded: bool = False,
) -> list[dict[str, Any]]:
    """Return the forecast for each batch size, for drafts of 0 to `gamma` tokens, or as far as the acceptance reaches.

    With each of the `lengths` a request's step emits `tau` tokens, bonus included, and computes `tokens`; its `cost`,
    drafting included, is in steps without drafts, and `speedup` is tau / cost.  `best` is the one with the highest
    speed-up, the shortest of equals.  `break_even` is the least alpha, the same at every position of full drafts, above
    which some length gains; None if none does even at 1.  `plain_step` is the cost of a step without drafts.

    `draft_cost` returns the cost of drafting one token for each request of a batch, and `overhead` is the fixed cost of
    drafting per step, both in its steps without drafts.  Rows that are `padded` are computed up to the draft length.
    """
    found = []
    for batch in batches:
        plain = step(batch, 1, 0)
        per_token = draft_cost(batch)
        lengths = []
        needed = []
        for each in range(min(gamma, len(acceptance.survival)) + 1):
            of_model = each if acceptance.model_tokens is None else min(each, acceptance.model_tokens)
            drafting = of_model * per_token + overhead * (each > 0)
            tau = acceptance.tau(each)
            tokens = each + 1 if padded else acceptance.tokens(each)
            if padded or batch > 1:  # the lengths of several requests average out
                seconds = step(batch, tokens, each)
            else:
                seconds = sum(share * step(1, length + 1, each) for length, share in acceptance.lengths(each))
            cost = seconds / plain + drafting
            lengths.append({"gamma": each, "tau": tau, "tokens": tokens, "cost": cost, "speedup": tau / cost})
            if each:
                needed.append(acceptance_for(step(batch, each + 1, each) / plain + drafting, each))
        break_even = min((alpha for alpha in needed if alpha is not None), default=None)
        row = {"batch": batch, "plain_step": plain, "draft_cost": per_token, "break_even": break_even}
        found.append({**row, "best": max(lengths, key=lambda length: length["speedup"]), "lengths": lengths})
    return found
