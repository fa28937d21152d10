"""`specplug replay` command: measures a proposer's drafts on recorded outputs, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from specplug.cli.launch import PluginOptions, Policy, flags, nested_options
from specplug.cli.numbers import ascending
from specplug.cli.output import AsJson, console, print_json, print_table
from specplug.cli.replay_inputs import progress, read
from specplug.errors import SettingsError, suggest

SHIPPED = Path(__file__).parents[1] / "replay" / "traces"
MODES = ("cold", "serving")
BATCHES = "1,8,32,64,128,256"


def replay(
    traces: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders of .jsonl traces; by default the shipped ones.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="tekken, spm1, spm3, tiny, or a tokenizer.json; tekken where mistral_common is installed, else tiny.",
        ),
    ] = None,
    proposers: Annotated[
        list[str] | None, typer.Option("--proposer", help="A proposer to replay; repeat to compare several.")
    ] = None,
    policy: Policy = None,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="MODULE:FACTORY", help="An external drafter to compare with; repeat."),
    ] = None,
    options: PluginOptions = None,
    gamma: Annotated[
        int | None,
        typer.Option("--gamma", min=0, help="Most draft tokens per step; by default the server's setting."),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="cold, serving (state is kept between requests) or both.")] = (
        "serving"
    ),
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes reported to the policy.")] = BATCHES,
    in_flight: Annotated[
        int | None,
        typer.Option("--in-flight", min=2, help="Also run N requests at a time, and print the difference."),
    ] = None,
    lag: Annotated[int, typer.Option("--lag", min=0, max=2, help="Steps by which decisions are delayed.")] = 0,
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Only these, separated by commas; repeat.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N requests of a workload.")
    ] = None,
    trees: Annotated[bool, typer.Option("--trees", help="The target verifies trees.")] = False,
    references: Annotated[
        bool, typer.Option("--references", help="Give each request its documents as references.")
    ] = False,
    corpus: Annotated[
        bool,
        typer.Option("--corpus", help="Give proposers that hold corpora the documents of all requests as a corpus."),
    ] = False,
    distractors: Annotated[
        int, typer.Option("--distractors", min=0, help="Also give them N corpora of other workloads' prompts.")
    ] = 0,
    cut_documents: Annotated[
        bool, typer.Option("--cut-documents", help="Cut each request's documents out of its prompt.")
    ] = False,
    saturation: Annotated[
        float, typer.Option("--saturation", min=1, help="Tokens up to which a step costs the same.")
    ] = 256,
    overhead: Annotated[
        float, typer.Option("--overhead", min=0, help="Cost of drafting per step, in plain steps.")
    ] = 0.02,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes that share the work.")] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write plots to one image, or, without a suffix, to a folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded outputs and count the draft tokens a target would accept: exact for greedy outputs, no model.

    Prints tokens per step (tau), accepted and wasted draft tokens, the speed-up S(B) over plain decoding at each batch
    size, and the calibration of confidences.  Without arguments it replays the shipped traces, offline.  The exit code
    is 1 if a plug-in had a fault, because its counts are then not those of the plug-in at work.

    Examples:

    `specplug replay`

    `specplug replay traces/ --proposer ngram --option ngram.min_n=3 --batch 1,32 --jobs 2 --plot replay.png`

    `specplug replay --workloads agentic --mode both --in-flight 8 --json`

    `specplug replay traces/ --workloads rag --proposer retrieval --corpus --cut-documents --distractors 16`

    `specplug replay --peer my_module:my_factory --gamma 8`
    """
    from specplug.replay.matrix import execute, plan_runs
    from specplug.replay.report import Report
    from specplug.replay.score import ScoringRoofline

    if plot is not None:
        from specplug.replay.plots import check_ending

        check_ending(plot)
    sizes, modes = ascending(batch, "batch sizes", "--batch"), _modes(mode)
    if in_flight is not None and "serving" not in modes:
        raise SettingsError.build(
            "nothing is kept in flight in cold mode", who="--in-flight", remedy="Use --mode serving or --mode both"
        )
    contenders = [
        *_proposers(
            proposers or ([] if peers else [None]),
            flags(policy=policy, options=nested_options(options or []), num_speculative_tokens=gamma),
            {"lag": lag, "references": references, "corpus": corpus, "trees": trees},
        ),
        *(_peer(path) for path in dict.fromkeys(peers or ())),
    ]
    runs = plan_runs(contenders, modes, sizes, _gamma(gamma), in_flight)
    inputs = read(
        traces or [SHIPPED],
        workloads or [],
        tokenizer,
        limit=limit,
        cut_documents=cut_documents,
        distractors=distractors,
        quiet=as_json,
    )
    with progress(quiet=as_json) as bar:
        task = bar.add_task("replaying", total=len(runs) * sum(map(len, inputs.items.values())))
        found = execute(
            runs,
            inputs.items,
            vocab_size=inputs.vocab_size,
            distractors=inputs.distractors,
            jobs=jobs,
            advance=lambda count: bar.advance(task, count),
        )
    report = Report(found, ScoringRoofline(saturation, overhead))
    written = _plot(report, plot)
    if as_json:
        print_json({"tokenizer": inputs.tokenizer, **report.as_dict(), "plots": [str(path) for path in written]})
    else:
        _print(report, inputs.tokenizer, written)
    if report.faults():
        raise typer.Exit(1)


def _gamma(given: int | None) -> int:
    """Return the most draft tokens per step: the command line's value, or else the setting."""
    from specplug.settings.sources import load_settings

    return load_settings({}, flags_origin="command line").settings.num_speculative_tokens if given is None else given


def _modes(text: str) -> list[Any]:
    if text == "both":
        return list(MODES)
    if text not in MODES:
        raise SettingsError.build(f"unknown mode {text!r}", who="--mode", remedy=suggest(text, (*MODES, "both")))
    return [text]


def _proposers(names: Iterable[str | None], given: dict[str, Any], rest: dict[str, Any]) -> list[Any]:
    """Return the proposers to replay, built with a server's settings; None stands for the settings' own proposer.

    Raises:
        SettingsError: a name or an option is wrong.
    """
    from specplug.plugins.registry import default_registry
    from specplug.replay.matrix import Contender
    from specplug.replay.setup import Setup
    from specplug.settings.sources import load_settings

    contenders = []
    for name in dict.fromkeys(names):
        overrides = {**given, **flags(proposer=name)}
        found = load_settings(overrides, flags_origin="command line", registry=default_registry()).settings
        setup = Setup(found.proposer, found.policy, options=found.options, **rest)
        contenders.append(Contender(f"{found.proposer} ({found.policy})", setup))
    return contenders


def _peer(path: str) -> Any:
    """Return an external drafter to compare with, after checking its factory's path."""
    from specplug.replay.external import load_factory
    from specplug.replay.matrix import Contender

    load_factory(path)
    return Contender(path, peer=path)


def _plot(report: Any, path: Path | None) -> list[Path]:
    if path is None:
        return []
    from specplug.replay.plots import plot

    return plot(report, path)


def _print(report: Any, tokenizer: str, plots: Sequence[Path]) -> None:
    for table in report.tables():
        print_table(table.title, table.columns, table.rows)
    out = console()
    roofline = report.roofline
    note = (
        f"Tokenizer: {tokenizer}. A step in which each of B requests verifies n draft tokens costs "
        f"max(1, B (n + 1) / {roofline.n_sat:g}) + {roofline.overhead:g} plain steps."
    )
    out.print(Text(note, style="dim"))
    for path in plots:
        out.print(Text(f"Plot: {path}"))
    for plugin, kinds in report.faults().items():
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        out.print(
            Text(f"Faults of {plugin}: {counts}. The counts above are not those of the plug-in at work.", style="red")
        )
