"""Inputs of `specplug plan`: the acceptance from one of four sources, and the costs of target and draft model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specplug.cli.launch import find_model
from specplug.errors import SettingsError, suggest
from specplug.forecast.acceptance import Acceptance, by_position, modelled
from specplug.forecast.model_shape import ModelShape, read_shape
from specplug.forecast.recorded import read_replay
from specplug.forecast.scraped import read_metrics
from specplug.forecast.step_cost import GPUS, Gpu, RooflineCost, SaturationCost, StepCost

SOURCES = ("--acceptance", "--acceptance-by-position", "--replay", "--metrics")
DEFAULT_SATURATION = 256.0
"""The policy `batch` assumes as many."""


def acceptance_from(
    alpha: float | None,
    positions: str | None,
    replay: Path | None,
    metrics: str | None,
    *,
    interval: float | None,
    gamma: int,
) -> Acceptance:
    """Return the acceptance from the one source that is given; the arguments are options, in the order of `SOURCES`.

    Raises:
        SettingsError, EngineError: there is not exactly one source, or it cannot be read.
    """
    given = [
        name for name, value in zip(SOURCES, (alpha, positions, replay, metrics), strict=True) if value is not None
    ]
    if len(given) != 1:
        found, expected = " and ".join(given) or "none", f"exactly one of {', '.join(SOURCES)}"
        raise SettingsError.build("a plan needs one source of acceptance", found=found, expected=expected)
    if interval is not None and metrics is None:
        raise SettingsError.build(
            "an interval is for a server's metrics", who="--interval", remedy="Give --metrics URL"
        )
    if metrics is not None:
        return read_metrics(metrics, interval)
    if replay is not None:
        return read_replay(replay)
    if positions is not None:
        return by_position(_rates(positions))
    assert alpha is not None
    return modelled(alpha, gamma)


def target_cost(
    target: Path | None, gpu: str | None, rates: Mapping[str, float | None], weight_bits: float | None, **given: Any
) -> RooflineCost | None:
    """Return the roofline of the target on its GPUs; None without a target.

    Args:
        target, gpu, weight_bits: the values of the options.
        rates: the values of `--bandwidth` and `--flops`, in tera per second.
        given: `context`, `kv_bits` and `tensor_parallel`, as `RooflineCost` takes them.

    Raises:
        SettingsError: an option has no effect, or the model or the GPU is unknown.
    """
    if target is None:
        for name, value in {"--gpu": gpu, **rates, "--weight-bits": weight_bits}.items():
            if value is not None:
                raise SettingsError.build("no roofline without a model", who=name, found=value, remedy="Give --target")
        return None
    shape = read_shape(Path(find_model(str(target))))
    return RooflineCost(shape, _gpu(gpu, rates), weight_bits=_bits(shape, weight_bits), **given)


def step_cost(roofline: RooflineCost | None, saturation: float | None) -> StepCost:
    """Return the roofline, or, without one, the cost by saturation.

    Raises:
        SettingsError: both are given.
    """
    if roofline is not None and saturation is not None:
        raise SettingsError.build(
            "two models of a step's cost",
            who="--saturation",
            found=f"--target as well, {roofline.shape.name}",
            remedy="Leave one of them out",
        )
    return roofline or SaturationCost(DEFAULT_SATURATION if saturation is None else saturation)


def draft_model_cost(path: Path, roofline: RooflineCost | None, **given: Any) -> RooflineCost:
    """Return the roofline of a draft model on the target's GPUs; without a target it only serves for its memory."""
    shape = read_shape(Path(find_model(str(path))))
    gpu = Gpu(1.0, 1.0) if roofline is None else roofline.gpu
    return RooflineCost(shape, gpu, weight_bits=_bits(shape, None), **given)


def draft_cost(
    given: float | None, drafting: RooflineCost | None, roofline: RooflineCost | None
) -> Callable[[int], float]:
    """Return the cost of drafting one token by batch size, in steps without drafts.

    Raises:
        SettingsError: it would follow from a draft model, but there is no target to compare with.
    """
    if given is not None or drafting is None:
        return lambda batch: given or 0.0
    if roofline is None:
        raise SettingsError.build(
            "the cost of drafting follows from both models", who="--draft-model", remedy="Give --target or --draft-cost"
        )
    return lambda batch: drafting.step(batch, 1) / roofline.step(batch, 1)


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        who, expected = "--acceptance-by-position", "such as 0.8,0.7,0.6"
        raise SettingsError.build("bad acceptance", who=who, found=repr(text), expected=expected) from None


def _gpu(name: str | None, rates: Mapping[str, float | None]) -> Gpu:
    """Return the GPU of that name, with the rates that are given in place of its own."""
    if name is not None and name.lower() not in GPUS:
        remedy = f"{suggest(name.lower(), GPUS)}. For others give --bandwidth and --flops"
        raise SettingsError.build(f"unknown GPU {name!r}", who="--gpu", remedy=remedy)
    bandwidth, flops = (None if rate is None else rate * 1e12 for rate in rates.values())
    known = None if name is None else GPUS[name.lower()]
    bandwidth, flops = bandwidth or (known and known.bandwidth), flops or (known and known.flops)
    if bandwidth is None or flops is None:
        raise SettingsError.build(
            "a roofline needs the GPU's rates", who="--target", remedy="Give --gpu, or --bandwidth and --flops"
        )
    return Gpu(bandwidth, flops)


def _bits(shape: ModelShape, given: float | None) -> float:
    bits = given or shape.weight_bits
    if bits is None:
        what = "the configuration does not say how many bits a weight has"
        raise SettingsError.build(what, who=shape.name, remedy="Give --weight-bits, or for a draft model a plain one")
    return bits
