"""`specplug plan` command: predicts whether speculation pays, and with which draft length, by batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specplug.errors import EngineError, SettingsError, suggest
from specplug.tools.cli.launch import find_model, parse_numbers
from specplug.tools.cli.options import Keys, option, with_groups
from specplug.tools.cli.output import AsJson, remark_text, show
from specplug.tools.cli.plan_tables import comparison_table, description_of, experts_touched, memory_line, tables
from specplug.tools.forecast.acceptance import DraftAcceptance, by_position, read_rates, read_replay
from specplug.tools.forecast.speedup import GPUS, CostModel, Gpu, RooflineCost, forecast, measured_cost, saturation_cost

BATCHES = (1, 8, 32, 64, 128, 256)

NOTE = (
    "Predicted, not measured: peak rates or steps timed at start, equal contexts, uniform routing, and the same "
    "acceptance at every batch size. `specplug bench` measures a server."
)


@dataclass(frozen=True)
class Source:
    """Where acceptance is from: one of the first four."""

    acceptance: float | None = option(
        None, "Probability that a draft token is accepted.", metavar="ALPHA", min=0, max=1
    )
    positions: str | None = option(
        None, "The same for each position, from the first.", "--acceptance-by-position", metavar="A1,A2,..."
    )
    replay: Path | None = option(None, "Acceptance from a file of `specplug replay --json`.")
    metrics: str | None = option(None, "Acceptance from a vLLM or SGLang server.", metavar="URL")
    interval: float | None = option(None, "Seconds between two scrapes; by default one scrape, the totals.", min=0.1)

    def read(self, gamma: int, keys: Keys) -> list[DraftAcceptance]:
        """Return the acceptance from the one option that is named; that of both drafters comes after each alone."""
        options = {
            "--acceptance": self.acceptance,
            "--acceptance-by-position": self.positions,
            "--replay": self.replay,
            "--metrics": self.metrics,
        }
        named = [name for name, value in options.items() if value is not None]
        if len(named) != 1:
            found = " and ".join(named) or "none"
            expected = f"exactly one of {', '.join(options)}"
            raise SettingsError.build("a plan needs one source of acceptance", found=found, expected=expected)
        if self.interval is not None and self.metrics is None:
            what = "an interval is for a server's metrics"
            raise SettingsError.build(what, who="--interval", remedy="Give --metrics URL")
        if self.metrics is not None:
            from specplug.tools.forecast.scraped import read_metrics

            return [read_metrics(self.metrics, self.interval, **asdict(keys))]
        if self.replay is not None:
            return read_replay(self.replay)
        if self.positions is not None:
            return [read_rates(self.positions, named[0])]
        alpha = self.acceptance or 0.0
        return [by_position([alpha] * gamma, f"modelled, alpha = {alpha:.4g} at every position")]


@dataclass(frozen=True)
class Drafts:
    """The batches and drafts to plan, and what drafting costs."""

    batch: str | None = option(
        None, "Requests that decode together, separated by commas; by default 1 to 256, or to a measured server's most."
    )
    gamma: int = option(15, "Longest draft to consider.", min=1, max=128)
    padded: bool = option(False, "Rows are padded to the draft length, as on vLLM's V2 runner and SGLang.", "--padded")
    draft_cost: float | None = option(None, "Cost of drafting one token, in steps without drafts; 0 for lookup.", min=0)
    draft_model: Path | None = option(None, "A draft model's config.json: memory and cost.")
    overhead: float | None = option(None, "Drafting's fixed cost per step, in plain steps: 0.02; 0 if measured.", min=0)

    def batches(self, measured: int | None) -> list[int]:
        """Return the numbers of requests; `measured` is the largest one whose step a server measured, if any."""
        if self.batch is not None:
            return parse_numbers(self.batch, "batch sizes", "--batch")
        if measured is None:
            return list(BATCHES)
        return [*(each for each in BATCHES if each < measured), measured]

    def model(self, target: Target, roofline: RooflineCost | None) -> RooflineCost | None:
        """Return the roofline of the draft model, on the target's GPUs; None without one."""
        if self.draft_model is None:
            return None
        if self.draft_cost is None and roofline is None:
            what = "the cost of drafting follows from both models"
            raise SettingsError.build(what, who="--draft-model", remedy="Give --target or --draft-cost")
        shape = _shape(self.draft_model)
        gpu = roofline.gpu if roofline else Gpu(1.0, 1.0)
        return RooflineCost(shape, gpu, weight_bits=_bits(shape), **target.common_arguments())

    def per_token(self, model: RooflineCost | None, roofline: RooflineCost | None) -> Callable[[int], float]:
        """Return the cost of drafting one token by batch size, in steps without drafts."""
        if self.draft_cost is not None or model is None or roofline is None:
            return lambda batch: self.draft_cost or 0.0
        return lambda batch: model.step(batch, 1) / roofline.step(batch, 1)


@dataclass(frozen=True)
class Measured:
    """The cost of a step, if no roofline tells it."""

    costs: str | None = option(None, "Steps that a server timed at start; by default --metrics'.", metavar="URL|FILE")
    saturation: float | None = option(None, "Tokens up to which a step costs the same; 256 without a target.", min=1)


@dataclass(frozen=True)
class Target:
    """The model on its GPUs."""

    target: Path | None = option(None, "The model's folder or config.json, for a roofline.")
    gpu: str | None = option(None, "a100, b200, h100, h200, l4, l40s or mi300x; or both below.")
    bandwidth: float | None = option(None, "Memory bandwidth of one GPU in TB/s.", min=0.001)
    flops: float | None = option(None, "Dense arithmetic of one GPU in TFLOPS.", min=0.001)
    tensor_parallel: int = option(1, "GPUs that share the model.", min=1)
    context: int = option(1024, "Tokens of context per request.", min=0)
    weight_bits: float | None = option(None, "Bits per weight; by default config.json's.", min=1)
    kv_bits: float = option(16, "Bits per element of the KV cache.", min=1)

    def common_arguments(self) -> dict[str, Any]:
        """Return what the target and a draft model share."""
        return {"context": self.context, "kv_bits": self.kv_bits, "tensor_parallel": self.tensor_parallel}

    def roofline_cost(self) -> RooflineCost | None:
        """Return the roofline of the target; None without one."""
        if self.target is None:
            for name in ("gpu", "bandwidth", "flops", "weight_bits"):
                if (value := getattr(self, name)) is not None:
                    who = f"--{name.replace('_', '-')}"
                    raise SettingsError.build(
                        "no roofline without a model", who=who, found=value, remedy="Give --target"
                    )
            return None
        shape = _shape(self.target)
        return RooflineCost(shape, self._gpu(), weight_bits=_bits(shape, self.weight_bits), **self.common_arguments())

    def _gpu(self) -> Gpu:
        name = None if self.gpu is None else self.gpu.lower()
        if name is not None and name not in GPUS:
            remedy = f"{suggest(name, GPUS)}. For others give --bandwidth and --flops"
            raise SettingsError.build(f"unknown GPU {self.gpu!r}", who="--gpu", remedy=remedy)
        known = None if name is None else GPUS[name]
        bandwidth = self.bandwidth * 1e12 if self.bandwidth else known and known.bandwidth
        flops = self.flops * 1e12 if self.flops else known and known.flops
        if bandwidth is None or flops is None:
            remedy = "Give --gpu, or --bandwidth and --flops"
            raise SettingsError.build("a roofline needs the GPU's rates", who="--target", remedy=remedy)
        return Gpu(bandwidth, flops)


class StepTime(NamedTuple):
    """The cost of a step, in a unit, and what it rests on; `measured`: most requests of a step that a server timed."""

    cost: CostModel
    unit: str
    basis: str
    measured: int | None = None


@with_groups
def plan(
    source: Source,
    drafts: Drafts,
    measured: Measured,
    target: Target,
    keys: Keys,
    *,
    as_json: AsJson = False,
) -> None:
    """Predict whether speculation pays on a server, and the best draft length by batch size, without running a model.

    Acceptance comes from exactly one of --acceptance, --acceptance-by-position, --replay and --metrics.  The cost of a
    step is what a server measured (--costs, or that of --metrics if it has measured), or a roofline of --target on
    --gpu (or --bandwidth and --flops), or follows from --saturation alone.  The cost of drafting is --draft-cost, or
    follows from --draft-model and --target, or is 0, as for lookup.

    Prints for each batch size the best draft length, the tokens per step, the speed-up over no speculation, and the
    acceptance at which speculation breaks even; then the speed-up of each draft length, the experts that a mixture of
    experts touches, and the memory of a draft model.  A replay with --engine-drafter is planned for lookup after that
    drafter, and compared with each alone.  All of it is predicted, not measured.

    Examples:

    `specplug plan --acceptance 0.7 --target ./Llama-3.1-8B --gpu h200 --context 2048`

    `specplug plan --acceptance 0.8 --target ./70B --draft-model ./1B --gpu h100 --tensor-parallel 4 --batch 1,16,64`

    `specplug plan --metrics http://127.0.0.1:8000 --interval 30 --saturation 300`

    `specplug replay --gamma 15 --json > replay.json; specplug plan --replay replay.json --json`

    `specplug replay --engine-drafter 0.8,0.7 --json > both.json; specplug plan --replay both.json --draft-cost 0.05`
    """
    roofline = target.roofline_cost()
    step = _step_time(measured, roofline, source.metrics, keys, target.context)
    batches = drafts.batches(step.measured)
    overhead = (0.02 if step.measured is None else 0.0) if drafts.overhead is None else drafts.overhead
    model = drafts.model(target, roofline)
    memory = None if model is None else model.memory(batches[-1])
    acceptances = source.read(drafts.gamma, keys)
    per_token = drafts.per_token(model, roofline)
    options: dict[str, Any] = {"draft_cost": per_token, "overhead": overhead, "padded": drafts.padded}
    forecasts = [forecast(each, step.cost, batches, drafts.gamma, **options) for each in acceptances]
    *alone, (acceptance, rows) = zip(acceptances, forecasts, strict=True)
    data = {
        "acceptance": asdict(acceptance),
        "cost": step.basis,
        "step_unit": step.unit,
        "overhead": overhead,
        "rows": [{**row, "experts_touched": experts_touched(roofline, row)} for row in rows],
        "alone": [{"acceptance": asdict(each), "rows": own} for each, own in alone],
        "draft_model": memory,
        "note": NOTE,
    }
    remarks = [] if memory is None else [memory_line(memory, batches[-1])]
    remarks += [f"Acceptance: {acceptance.source}.", f"Cost: {step.basis}; drafting adds {overhead:g} of a step."]
    compared = [] if len(acceptances) == 1 else [comparison_table(forecasts)]
    show(data, *compared, *tables(rows, step.unit, roofline), *remarks, remark_text(NOTE), as_json=as_json)


def _step_time(
    measured: Measured, roofline: RooflineCost | None, metrics: str | None, keys: Keys, context: int
) -> StepTime:
    """Return the cost of a step: of the target's roofline, as a server measured it, or by the tokens that saturate."""
    options = {"--costs": measured.costs, "--target": roofline, "--saturation": measured.saturation}
    if len(named := [name for name, value in options.items() if value is not None]) > 1:
        what = "several costs of a step"
        remedy = "Leave all but one of them out"
        raise SettingsError.build(what, found=" and ".join(named), remedy=remedy)
    if roofline is not None:
        return StepTime(roofline.step, "seconds", description_of(roofline))
    why = ""
    if (place := measured.costs or (None if named else metrics)) is not None:
        from specplug.tools.forecast.scraped import read_costs

        try:
            steps = read_costs(place, **asdict(keys))
        except EngineError as error:
            if named:
                raise
            why = f" ({error})"
        else:
            basis = f"{len(steps)} sizes of steps that {place} measured, with the policies' estimate of others"
            most = max(step.requests for step in steps)
            return StepTime(measured_cost(steps, context), "seconds", basis, most)
    tokens = measured.saturation or 256.0
    basis = f"a step costs the same up to {tokens:g} tokens, and grows in proportion beyond{why}"
    return StepTime(saturation_cost(tokens), "steps of a small batch", basis)


def _shape(model: Path) -> Any:
    from specplug.tools.forecast.model_shape import read_shape  # imports torch

    return read_shape(Path(find_model(str(model))))


def _bits(shape: Any, given: float | None = None) -> float:
    bits = given or shape.weight_bits
    if bits is None:
        what = "the configuration does not say how many bits a weight has"
        raise SettingsError.build(what, who=shape.name, remedy="Give --weight-bits, or for a draft model a plain one")
    return bits
