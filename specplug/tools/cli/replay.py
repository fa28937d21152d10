"""`specplug replay` command: measures a proposer's drafts on recorded outputs, without a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from specplug.errors import SettingsError, suggest
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER, HYBRID
from specplug.settings import ResolvedSettings, Settings
from specplug.settings.sources import after_engine
from specplug.tools.cli.launch import flags, nested_options, parse_numbers, settings_of
from specplug.tools.cli.options import PluginOptions, Policy, option, with_groups
from specplug.tools.cli.output import AsJson, progress_counter, remark_text, show, table

if TYPE_CHECKING:
    from specplug.text.tokenizers import Tokenizer
    from specplug.tools.replay.engine import Setup
    from specplug.tools.replay.items import Item, TokenItem
    from specplug.tools.replay.report import ReplayReport
    from specplug.tools.replay.run import Distractors, Mode, ReplayRun
    from specplug.tools.replay.score import ScoringRoofline

SHIPPED = Path(__file__).parents[1] / "replay" / "traces"
MODES: tuple[Mode, ...] = ("cold", "serving")
BATCHES = "1,8,32,64,128,256"


@dataclass(frozen=True)
class Drafters:
    """The proposers and the policy to replay, with a server's settings."""

    proposers: list[str] | None = option(None, "A proposer to replay; repeat to compare several.", "--proposer")
    policy: Policy = None
    options: PluginOptions = None
    gamma: int | None = option(None, "Most draft tokens per step; by default the server's setting.", min=0)
    engine_drafter: str | None = option(
        None,
        "Compare with a drafter of the engine's own, and with both: how often its token at each position is accepted "
        "if those before it are, or the server whose metrics say so.",
        metavar="A1,A2,...|URL",
    )

    def build_setups(self, texts: Texts) -> list[Setup]:
        """Return the setups to replay; without a proposer, that of the settings."""
        from specplug.tools.replay.engine import Setup

        options = nested_options(self.options or [])
        own = flags(policy=self.policy, options=options, num_speculative_tokens=self.gamma)
        names: Sequence[str | None] = self.proposers or [None]
        chosen = [settings_of({**own, **flags(proposer=name)}) for name in dict.fromkeys(names)]
        rest: dict[str, Any] = {"references": texts.references, "corpus": texts.corpus, "trees": texts.trees}
        found = [
            Setup(each.proposer, each.policy, each.num_speculative_tokens, options=each.options, **rest)
            for each in chosen
        ]
        return found if self.engine_drafter is None else _with_drafter(found, self.engine_drafter)


@dataclass(frozen=True)
class Texts:
    """The requests to replay, and where their documents are."""

    workloads: list[str] | None = option(None, "Only these, separated by commas; repeat.")
    limit: int | None = option(None, "Only the first N requests of a workload.", min=1)
    trees: bool = option(False, "The target verifies trees.", "--trees")
    references: bool = option(False, "Pass requests' documents as references.", "--references")
    corpus: bool = option(
        False, "Give proposers that hold corpora the documents of all requests as a corpus.", "--corpus"
    )
    distractors: int = option(0, "Also give them N corpora of other workloads' prompts.", min=0)
    cut_documents: bool = option(False, "Cut documents out of the prompts.", "--cut-documents")

    def read(self, paths: Sequence[Path]) -> tuple[Mapping[str, Sequence[Item]], dict[str, Sequence[Item]]]:
        """Read the traces; return all items by workload, and those to replay."""
        from specplug.tools.replay.items import read_traces, without_documents

        everything = read_traces(*paths)
        names = [name.strip() for each in self.workloads or () for name in each.split(",")] or list(everything)
        for name in names:
            if name not in everything:
                remedy = suggest(name, everything)
                raise SettingsError.build(f"unknown workload {name!r}", who="--workloads", remedy=remedy)
        texts: dict[str, Sequence[Item]] = {
            name: found[: self.limit] for name, found in everything.items() if name in names
        }
        if self.cut_documents:
            texts = {name: [without_documents(item) for item in found] for name, found in texts.items()}
        return everything, texts


@with_groups
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
    *,
    drafters: Drafters,
    mode: Annotated[str, typer.Option(help="cold, serving (state is kept between requests) or both.")] = "serving",
    batch: Annotated[str, typer.Option(help="Batch sizes reported to the policy.")] = BATCHES,
    texts: Texts,
    saturation: Annotated[float, typer.Option(min=1, help="Tokens up to which a step costs the same.")] = 256,
    overhead: Annotated[float, typer.Option(min=0, help="Cost of drafting per step, in plain steps.")] = 0.02,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Replay recorded outputs and count the draft tokens a target would accept: exact for greedy outputs, no model.

    Prints tokens per step (tau), accepted and wasted draft tokens, the speed-up S(B) over plain decoding at each batch
    size, and the calibration of confidences.  Without arguments it replays the shipped traces, offline.  The exit code
    is 1 if a plug-in had a fault, because its counts are then not those of the plug-in at work.

    With --engine-drafter it tells what lookup after an EAGLE or MTP head, or a draft model, is worth on these texts:
    it replays the drafter alone, lookup alone and both.  The drafter is simulated: its errors are drawn at random.

    Examples:

    `specplug replay`

    `specplug replay traces/ --proposer ngram --option ngram.min_n=3 --batch 1,32 --jobs 2`

    `specplug replay --workloads agentic --mode both --json`

    `specplug replay traces/ --engine-drafter 0.8,0.7,0.6 --batch 1,32`

    `specplug replay traces/ --workloads rag --proposer retrieval --corpus --cut-documents --distractors 16`
    """
    from specplug.text.tokenizers import load_tokenizer
    from specplug.tools.replay.report import ReplayReport
    from specplug.tools.replay.run import ReplayRun
    from specplug.tools.replay.score import ScoringRoofline

    sizes = parse_numbers(batch, "batch sizes", "--batch")
    modes = _modes(mode)
    runs = [ReplayRun(setup, each, size) for setup in drafters.build_setups(texts) for each in modes for size in sizes]
    loaded = load_tokenizer(tokenizer or _default_tokenizer())
    found = _execute(runs, texts, traces or [SHIPPED], loaded, jobs=jobs, quiet=as_json)
    report = ReplayReport(found, ScoringRoofline(saturation, overhead))
    name = loaded.fingerprint.name
    tables = [table(*each) for each in report.tables()]
    parts: list[Table | Text] = [*tables, remark_text(_note(name, report.roofline)), *_faults(report)]
    show({"tokenizer": name, **report.as_dict()}, *parts, as_json=as_json)
    if report.faults():
        raise typer.Exit(1)


def _default_tokenizer() -> str:
    return "tiny" if importlib.util.find_spec("mistral_common") is None else "tekken"


def _note(tokenizer: str, roofline: ScoringRoofline) -> str:
    return (
        f"Tokenizer: {tokenizer}. A step in which each of B requests verifies n draft tokens costs "
        f"max(1, B (n + 1) / {roofline.n_sat:g}) + {roofline.overhead:g} plain steps."
    )


def _execute(
    runs: Sequence[ReplayRun], texts: Texts, traces: Sequence[Path], tokenizer: Tokenizer, *, jobs: int, quiet: bool
) -> list[ReplayRun]:
    from specplug.tools.replay.items import tokenize, vocab_size_for
    from specplug.tools.replay.run import execute

    everything, chosen = texts.read(traces)
    label = f"tokenising ({tokenizer.fingerprint.name})"
    with progress_counter(label, sum(map(len, chosen.values())), quiet=quiet) as advance:
        items = {workload: tokenize(found, tokenizer, advance) for workload, found in chosen.items()}
    with progress_counter("replaying", len(runs) * sum(map(len, items.values())), quiet=quiet) as advance:
        return execute(
            runs,
            items,
            vocab_size=max(vocab_size_for(each, tokenizer) for each in items.values()),
            distractors=_distractors(everything, items, texts.distractors, tokenizer),
            jobs=jobs,
            advance=advance,
        )


def _distractors(
    everything: Mapping[str, Sequence[Item]],
    workloads: Mapping[str, Sequence[TokenItem]],
    count: int,
    loaded: Tokenizer,
) -> Distractors:
    """Return for each workload corpora of the others' prompts, unmodified and regardless of the limit."""
    from specplug.tools.replay.items import distractor_corpora

    if not count:
        return {}
    prompts = {name: [loaded.encode(item.prompt) for item in found] for name, found in everything.items()}
    return {
        name: distractor_corpora([prompts[other] for other in prompts if other != name], count) for name in workloads
    }


def _modes(text: str) -> list[Mode]:
    found = [mode for mode in MODES if text in (mode, "both")]
    if not found:
        raise SettingsError.build(f"unknown mode {text!r}", who="--mode", remedy=suggest(text, (*MODES, "both")))
    return found


def _with_drafter(lookups: Sequence[Setup], drafter: str) -> list[Setup]:
    """Return the setups of the engine's drafter alone, of each lookup alone, and of each after the drafter."""
    from specplug.tools.forecast.acceptance import read_rates
    from specplug.tools.forecast.scraped import read_metrics

    option = "--engine-drafter"
    rates = (read_metrics(drafter, None) if "://" in drafter else read_rates(drafter, option)).rates
    found = []
    for it in lookups:
        named = {} if it.proposer == HYBRID else {"lookup": it.proposer}
        hybrid = {**it.options.get(HYBRID, {}), **named, "model": ENGINE_DRAFTER, "model_tokens": len(rates)}
        if it.trees:
            raise SettingsError.build(
                "lookup goes on after a chain", who=option, found="--trees", remedy="Leave it out"
            )
        given = {"proposer": HYBRID, "num_speculative_tokens": it.gamma, "options": {**it.options, HYBRID: hybrid}}
        origins = {f"options.{HYBRID}.model_tokens": option}
        own, _ = after_engine(ResolvedSettings(Settings.model_validate(given), origins), default_registry())
        found.append(replace(it, proposer=own.settings.proposer))
    alone = replace(found[0], proposer=ENGINE_DRAFTER, gamma=len(rates), engine_rates=rates)
    return [alone, *found, *(replace(it, engine_rates=rates) for it in found)]


def _faults(report: ReplayReport) -> Iterator[Text]:
    for plugin, kinds in report.faults().items():
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        line = f"Faults of {plugin}: {counts}. The counts above are not those of the plug-in at work."
        yield Text(line, style="red")
