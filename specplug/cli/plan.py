"""`specplug plan` command: predicts whether speculation pays, and with which draft length, by batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specplug.cli.numbers import ascending
from specplug.cli.output import AsJson

BATCHES = "1,8,32,64,128,256"


def plan(
    acceptance: Annotated[
        float | None,
        typer.Option("--acceptance", metavar="ALPHA", min=0, max=1, help="Probability that a draft token is accepted."),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--acceptance-by-position", metavar="A1,A2,...", help="The same for each position, from the first."
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Acceptance from a file that `specplug replay --json` wrote.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="URL", help="Acceptance from a running vLLM or SGLang server.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", min=0.1, help="Seconds between two scrapes; by default one scrape, the totals."),
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", help="Requests that decode together, separated by commas.")
    ] = BATCHES,
    gamma: Annotated[int, typer.Option("--gamma", min=1, max=128, help="Longest draft to consider.")] = 15,
    padded: Annotated[
        bool, typer.Option("--padded", help="Rows are padded to the draft length, as on vLLM's V2 runner and SGLang.")
    ] = False,
    draft_cost: Annotated[
        float | None,
        typer.Option("--draft-cost", min=0, help="Cost of drafting one token, in steps without drafts; 0 for lookup."),
    ] = None,
    draft_model: Annotated[
        Path | None, typer.Option("--draft-model", help="A draft model's config.json: its memory, and its cost.")
    ] = None,
    overhead: Annotated[
        float, typer.Option("--overhead", min=0, help="Fixed cost of drafting per step, in steps without drafts.")
    ] = 0.02,
    saturation: Annotated[
        float | None,
        typer.Option("--saturation", min=1, help="Tokens up to which a step costs the same; 256 without a target."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--target", help="The model's folder or config.json, for a roofline of its steps.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="a100, b200, h100, h200, l4, l40s or mi300x; others by the two below.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option("--bandwidth", min=1e-3, help="Memory bandwidth of one GPU in TB/s.")
    ] = None,
    flops: Annotated[
        float | None, typer.Option("--flops", min=1e-3, help="Dense arithmetic of one GPU in TFLOPS.")
    ] = None,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", min=1, help="GPUs that share the model.")] = 1,
    context: Annotated[int, typer.Option("--context", min=0, help="Tokens of context per request.")] = 1024,
    weight_bits: Annotated[
        float | None, typer.Option("--weight-bits", min=1, help="Bits per weight; by default those of the config.json.")
    ] = None,
    kv_bits: Annotated[float, typer.Option("--kv-bits", min=1, help="Bits per element of the KV cache.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Predict whether speculation pays on a server, and the best draft length by batch size, without running a model.

    Acceptance comes from exactly one of --acceptance, --acceptance-by-position, --replay and --metrics.  The cost of a
    step comes from a roofline of --target on --gpu (or --bandwidth and --flops), or from --saturation alone.  The cost
    of drafting is --draft-cost, or follows from --draft-model and --target, or is 0, as for lookup.

    Prints for each batch size the best draft length, the tokens per step, the speed-up over no speculation, and the
    acceptance at which speculation breaks even; then the speed-up of each draft length, the experts that a mixture of
    experts touches, and the memory of a draft model.  All of it is predicted, not measured.

    Examples:

    `specplug plan --acceptance 0.7 --target ./Llama-3.1-8B --gpu h200 --context 2048`

    `specplug plan --acceptance 0.8 --target ./70B --draft-model ./1B --gpu h100 --tensor-parallel 4 --batch 1,16,64`

    `specplug plan --metrics http://127.0.0.1:8000 --interval 30 --saturation 300`

    `specplug replay --gamma 15 --json > replay.json; specplug plan --replay replay.json --json`
    """
    from specplug.cli import plan_inputs, plan_shown
    from specplug.forecast.memory import model_memory
    from specplug.forecast.speedup import forecast

    batches = ascending(batch, "batch sizes", "--batch")
    rates = {"--bandwidth": bandwidth, "--flops": flops}
    common = {"context": context, "kv_bits": kv_bits, "tensor_parallel": tensor_parallel}
    roofline = plan_inputs.target_cost(target, gpu, rates, weight_bits, **common)
    cost = plan_inputs.step_cost(roofline, saturation)
    drafting = None if draft_model is None else plan_inputs.draft_model_cost(draft_model, roofline, **common)
    cost_of_drafting = plan_inputs.draft_cost(draft_cost, drafting, roofline)
    found = plan_inputs.acceptance_from(acceptance, positions, replay, metrics, interval=interval, gamma=gamma)
    found = found.padded() if padded else found
    rows = forecast(found, cost, batches, gamma, draft_cost=cost_of_drafting, overhead=overhead)
    memory = None if drafting is None else model_memory(drafting, batches[-1])
    show = plan_shown.print_as_json if as_json else plan_shown.print_tables
    show(rows, found, cost, memory, overhead)
