"""`specplug plan` command: predicts whether speculation pays, and with which draft length, by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specplug.errors import EngineError, SettingsError, suggest
from specplug.tools.cli.launch import OperatorKey, ascending, find_model
from specplug.tools.cli.output import AsJson, dim, show, table
from specplug.tools.forecast.acceptance import DraftAcceptance, by_position, read_rates, read_replay
from specplug.tools.forecast.speedup import GPUS, CostModel, Gpu, RooflineCost, forecast, measured_cost, saturation_cost

BATCHES = "1,8,32,64,128,256"

NOTE = (
    "Predicted, not measured: peak rates or steps timed at start, equal contexts, uniform routing, and the same "
    "acceptance at every batch size. `specplug bench` measures a server."
)
_LENGTHS_SHOWN = {*range(9), 12, 15, 16, 24, 31, 32, 48, 63, 64, 96, 127}
"""Rows of the table by draft length, in addition to the longest; the JSON has all."""


def plan(
    acceptance: Annotated[
        float | None, typer.Option(metavar="ALPHA", min=0, max=1, help="Probability that a draft token is accepted.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--acceptance-by-position", metavar="A1,A2,...", help="The same for each position, from the first."
        ),
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Acceptance from a file of `specplug replay --json`.")] = None,
    metrics: Annotated[str | None, typer.Option(metavar="URL", help="Acceptance from a vLLM or SGLang server.")] = None,
    interval: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds between two scrapes; by default one scrape, the totals.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Requests that decode together, separated by commas.")] = BATCHES,
    gamma: Annotated[int, typer.Option(min=1, max=128, help="Longest draft to consider.")] = 15,
    padded: Annotated[
        bool, typer.Option("--padded", help="Rows are padded to the draft length, as on vLLM's V2 runner and SGLang.")
    ] = False,
    draft_cost: Annotated[
        float | None, typer.Option(min=0, help="Cost of drafting one token, in steps without drafts; 0 for lookup.")
    ] = None,
    draft_model: Annotated[Path | None, typer.Option(help="A draft model's config.json: memory and cost.")] = None,
    overhead: Annotated[
        float | None, typer.Option(min=0, help="Drafting's fixed cost per step, in plain steps: 0.02; 0 if measured.")
    ] = None,
    costs: Annotated[
        str | None, typer.Option(metavar="URL|FILE", help="Steps that a server timed at start; by default --metrics'.")
    ] = None,
    saturation: Annotated[
        float | None, typer.Option(min=1, help="Tokens up to which a step costs the same; 256 without a target.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="The model's folder or config.json, for a roofline.")] = None,
    gpu: Annotated[str | None, typer.Option(help="a100, b200, h100, h200, l4, l40s or mi300x; or both below.")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="Memory bandwidth of one GPU in TB/s.")] = None,
    flops: Annotated[float | None, typer.Option(min=0.001, help="Dense arithmetic of one GPU in TFLOPS.")] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that share the model.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="Tokens of context per request.")] = 1024,
    weight_bits: Annotated[float | None, typer.Option(min=1, help="Bits per weight; by default config.json's.")] = None,
    kv_bits: Annotated[float, typer.Option(min=1, help="Bits per element of the KV cache.")] = 16,
    operator_key: OperatorKey = None,
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
    batches = ascending(batch, "batch sizes", "--batch")
    of_target = {"--gpu": gpu, "--bandwidth": bandwidth, "--flops": flops, "--weight-bits": weight_bits}
    common: dict[str, Any] = {"context": context, "kv_bits": kv_bits, "tensor_parallel": tensor_parallel}
    roofline = _target_cost(target, of_target, common)
    chosen = {"--costs": costs, "--target": roofline, "--saturation": saturation}
    measured, why = _measured(chosen, metrics, operator_key)
    overhead = (0.0 if measured else 0.02) if overhead is None else overhead
    cost: CostModel
    if roofline is not None:
        cost = roofline.step
        unit = "seconds"
        basis = _description(roofline)
    elif measured:
        cost = measured_cost(measured, context)
        unit = "seconds"
        basis = (
            f"{len(measured)} sizes of steps that {costs or metrics} measured, with the policies' estimate of others"
        )
    else:
        cost = saturation_cost(saturation or 256.0)
        unit = "steps of a small batch"
        basis = f"a step costs the same up to {saturation or 256:g} tokens, and grows in proportion beyond{why}"
    drafting, memory = None, None
    if draft_model is not None:
        shape = _shape(draft_model)
        drafting = RooflineCost(shape, roofline.gpu if roofline else Gpu(1.0, 1.0), weight_bits=_bits(shape), **common)
        memory = drafting.memory(batches[-1])
        if draft_cost is None and roofline is None:
            what = "the cost of drafting follows from both models"
            remedy = "Give --target or --draft-cost"
            raise SettingsError.build(what, who="--draft-model", remedy=remedy)

    def per_token(batch: int) -> float:
        """Return the cost of drafting one token, in steps without drafts."""
        if draft_cost is not None or drafting is None or roofline is None:
            return draft_cost or 0.0
        return drafting.step(batch, 1) / roofline.step(batch, 1)

    sources = {"--acceptance": acceptance, "--acceptance-by-position": positions}
    drafts = _acceptance({**sources, "--replay": replay, "--metrics": metrics}, interval, gamma)
    options: dict[str, Any] = {"draft_cost": per_token, "overhead": overhead, "padded": padded}
    forecasts = [forecast(each, cost, batches, gamma, **options) for each in drafts]
    *alone, (given, rows) = zip(drafts, forecasts, strict=True)
    experts = [_experts(roofline, row) for row in rows]
    data = {
        "acceptance": asdict(given),
        "cost": basis,
        "step_unit": unit,
        "overhead": overhead,
        "rows": [{**row, "experts_touched": touched} for row, touched in zip(rows, experts, strict=True)],
        "alone": [{"acceptance": asdict(it), "rows": of} for it, of in alone],
        "draft_model": memory,
        "note": NOTE,
    }
    remarks = [] if memory is None else [_memory_line(memory, batches[-1])]
    remarks += [f"Acceptance: {given.source}.", f"Cost: {basis}; drafting adds {overhead:g} of a step."]
    compared = [] if len(drafts) == 1 else [_comparison(forecasts)]
    show(data, *compared, *_tables(rows, unit, roofline), *remarks, dim(NOTE), as_json=as_json)


def _measured(chosen: Mapping[str, Any], metrics: str | None, key: str | None) -> tuple[Sequence[Any], str]:
    """Return the steps that a server measured, if no other cost of a step is chosen, or why there are none."""
    if len(found := [name for name, value in chosen.items() if value is not None]) > 1:
        what = "several costs of a step"
        remedy = "Leave all but one of them out"
        raise SettingsError.build(what, found=" and ".join(found), remedy=remedy)
    source = chosen["--costs"] or (None if found else metrics)
    if source is None:
        return [], ""
    from specplug.tools.forecast.scraped import read_costs

    try:
        return read_costs(source, key), ""
    except EngineError as error:
        if found:
            raise
        return [], f" ({error})"


def _acceptance(sources: Mapping[str, Any], interval: float | None, gamma: int) -> list[DraftAcceptance]:
    """Return the acceptance from the one option that is given; that of both drafters comes after each alone."""
    given = {name: value for name, value in sources.items() if value is not None}
    if len(given) != 1:
        found = " and ".join(given) or "none"
        expected = f"exactly one of {', '.join(sources)}"
        raise SettingsError.build("a plan needs one source of acceptance", found=found, expected=expected)
    ((name, value),) = given.items()
    if interval is not None and name != "--metrics":
        what = "an interval is for a server's metrics"
        raise SettingsError.build(what, who="--interval", remedy="Give --metrics URL")
    if name == "--metrics":
        from specplug.tools.forecast.scraped import read_metrics

        return [read_metrics(value, interval)]
    if name == "--replay":
        return read_replay(value)
    if name == "--acceptance":
        return [by_position([value] * gamma, f"modelled, alpha = {value:.4g} at every position")]
    return [read_rates(value, name)]


def _target_cost(target: Path | None, given: Mapping[str, Any], common: Mapping[str, Any]) -> RooflineCost | None:
    """Return the roofline of the target on its GPUs; None without a target."""
    if target is None:
        for name, value in given.items():
            if value is not None:
                raise SettingsError.build("no roofline without a model", who=name, found=value, remedy="Give --target")
        return None
    shape = _shape(target)
    return RooflineCost(shape, _gpu(given), weight_bits=_bits(shape, given["--weight-bits"]), **common)


def _gpu(given: Mapping[str, Any]) -> Gpu:
    """Return the GPU of that name, with the rates that are given, in tera per second, in place of its own."""
    name, bandwidth, flops = (given[option] for option in ("--gpu", "--bandwidth", "--flops"))
    if name is not None and name.lower() not in GPUS:
        remedy = f"{suggest(name.lower(), GPUS)}. For others give --bandwidth and --flops"
        raise SettingsError.build(f"unknown GPU {name!r}", who="--gpu", remedy=remedy)
    known = None if name is None else GPUS[name.lower()]
    bandwidth = bandwidth * 1e12 if bandwidth else known and known.bandwidth
    flops = flops * 1e12 if flops else known and known.flops
    if bandwidth is None or flops is None:
        remedy = "Give --gpu, or --bandwidth and --flops"
        raise SettingsError.build("a roofline needs the GPU's rates", who="--target", remedy=remedy)
    return Gpu(bandwidth, flops)


def _shape(model: Path) -> Any:
    from specplug.tools.forecast.model_shape import read_shape  # imports torch

    return read_shape(Path(find_model(str(model))))


def _bits(shape: Any, given: float | None = None) -> float:
    bits = given or shape.weight_bits
    if bits is None:
        what = "the configuration does not say how many bits a weight has"
        raise SettingsError.build(what, who=shape.name, remedy="Give --weight-bits, or for a draft model a plain one")
    return bits


def _tables(rows: Sequence[dict[str, Any]], unit: str, roofline: RooflineCost | None) -> Iterator[Table]:
    """Yield the best draft lengths, all draft lengths, and the experts touched."""
    columns = ("batch size", "best gamma", "tau", "speed-up", "break-even acceptance", "draft cost")
    title = f"Predicted best draft length, up to {rows[0]['lengths'][-1]['gamma']} tokens"
    yield table(title, (*columns, "step without drafts"), [_cells(row, timed=unit == "seconds") for row in rows])
    by_length = [[f"{length['speedup']:.2f}" for length in row["lengths"]] for row in rows]
    yield _by_length("Predicted speed-up by draft length", rows, by_length)
    if roofline is not None and (experts := roofline.shape.weights.experts):
        title = f"Experts touched per layer, of {experts}, by draft length"
        yield _by_length(title, rows, [[f"{count:.1f}" for count in _experts(roofline, row) or ()] for row in rows])


def _comparison(forecasts: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """Return the best of each of the drafts, and what both drafters gain over the better one alone."""
    lines = []
    for rows in zip(*forecasts, strict=True):
        speedups = [row["best"]["speedup"] for row in rows]
        cells = [
            f"{best['tau']:.2f} ({best['gamma']}): {best['speedup']:.2f}" for best in (row["best"] for row in rows)
        ]
        gains = [f"{speedups[-1] / other:.2f}" for other in (speedups[0], max(speedups[:-1]))]
        lines.append([str(rows[0]["batch"]), *cells, *gains])
    names = ("drafter alone", "lookup alone", "both", "both to drafter", "both to the better")
    return table("Lookup after the engine's drafter: tau (best gamma): speed-up", ("batch size", *names), lines)


def _memory_line(memory: Mapping[str, Any], batch: int) -> str:
    weights, cache, per_gpu = (f"{memory[size] / 1e9:.2f} GB" for size in ("weights", "kv_cache", "per_gpu"))
    return (
        f"Draft model {memory['name']}: {memory['parameters'] / 1e9:.2f} B parameters, {weights} of weights, "
        f"{memory['kv_per_token'] / 1e3:.1f} kB of KV cache per token, {cache} at batch size {batch}; "
        f"{per_gpu} on each GPU."
    )


def _cells(row: Mapping[str, Any], *, timed: bool) -> list[str]:
    best = row["best"]
    plain = row["plain_step"]
    return [
        str(row["batch"]),
        str(best["gamma"] or "off"),
        f"{best['tau']:.2f}",
        f"{best['speedup']:.2f}",
        "never" if row["break_even"] is None else f"{row['break_even']:.2f}",
        f"{row['draft_cost']:.3f}",
        f"{1e3 * plain:.2f} ms" if timed else f"{plain:.2f}",
    ]


def _by_length(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Sequence[str]]) -> Table:
    """Return a table of one column per batch size; long drafts are shown at some lengths only."""
    gammas = range(len(rows[0]["lengths"]))
    shown = [gamma for gamma in gammas if gamma in _LENGTHS_SHOWN or gamma == gammas[-1]]
    lines = [[str(gamma or "off"), *(column[gamma] for column in columns)] for gamma in shown]
    return table(title, ("gamma", *(f"B={row['batch']}" for row in rows)), lines)


def _experts(roofline: RooflineCost | None, row: Mapping[str, Any]) -> list[float] | None:
    """Return the experts of a layer that a step touches, by draft length from 0; None for a dense model."""
    if roofline is None or not roofline.shape.weights.experts:
        return None
    return [roofline.shape.experts_touched(row["batch"] * length["tokens"]) for length in row["lengths"]]


def _description(cost: RooflineCost) -> str:
    """Return a roofline in words."""
    shape = cost.shape
    gpu = cost.gpu
    active = f", {shape.active_parameters / 1e9:.2f} B of them per token" if shape.weights.experts else ""
    return (
        f"roofline of {shape.name}, {shape.parameters / 1e9:.2f} B parameters{active}, {cost.weight_bits:g} bits each, "
        f"{cost.context} tokens of context, on {cost.tensor_parallel} x {gpu.bandwidth / 1e12:g} TB/s "
        f"and {gpu.flops / 1e12:g} TFLOPS"
    )
