"""`specplug bench` command: measures whether speculation speeds up a running server on its own traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from specplug.tools.cli.html_report import HtmlFile, Plot, write_report
from specplug.tools.cli.launch import parse_numbers, server_form
from specplug.tools.cli.options import Raw, Server, with_groups
from specplug.tools.cli.output import AsJson, print_error, print_note, progress, remark_text, show, table
from specplug.tools.cli.replay import SHIPPED
from specplug.tools.client.http import ServerClient
from specplug.tools.client.interrupt import run_interruptible

if TYPE_CHECKING:
    from specplug.tools.bench.prompts import Block, Prompt
    from specplug.tools.bench.report import Comparison
    from specplug.tools.bench.run import Measured

NOTE = (
    "Ratios compare speculation on with off on the same server, pair by pair, with 95 % intervals; above 1 is faster. "
    "A server started without specplug can be faster than one with speculation off. Within the timed blocks no prompt "
    "was sent twice, since an answer that the response memory holds is drafted whole and comes several times as fast: "
    "send other prompts in the next run, or restart the server."
)


@dataclass(frozen=True)
class Blocks:
    """The requests of a run, and how they are timed."""

    concurrency: Annotated[str, typer.Option(help="Requests in flight, separated by commas; one row each.")] = "1,4"
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of blocks, off and on, at each concurrency.")] = 3
    until: Annotated[
        bool, typer.Option("--until", help="Go on with further pairs until a difference is shown, or the prompts end.")
    ] = False
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens per answer.")] = 128
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N different prompts.")] = None
    check: Annotated[int, typer.Option(min=0, help="Prompts sent in both modes at the end, to compare texts.")] = 4
    raw: Raw = False
    model: Annotated[str | None, typer.Option(help="The model's name; by default the first one.")] = None

    @property
    def first_look(self) -> int | None:
        """The pairs after which a run with --until looks first; None for others."""
        return self.pairs if self.until else None

    def deal(self, prompts: Sequence[Prompt], seed: int) -> list[Block]:
        """Assign the prompts to blocks."""
        from specplug.tools.bench.prompts import assign_blocks, most_pairs

        in_flight = parse_numbers(self.concurrency, "numbers", "--concurrency")
        most = max(self.pairs, most_pairs(len(prompts), in_flight)) if self.until else self.pairs
        return assign_blocks(prompts, in_flight, most, seed)


@with_groups
def bench(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders of .jsonl with prompts or chat logs; by default the shipped traces."),
    ] = None,
    *,
    blocks: Blocks,
    server: Server,
    seed: Annotated[int, typer.Option(help="Seed for assigning prompts to blocks.")] = 0,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure whether speculation helps a running vLLM or SGLang server, with your own prompts.

    Switches speculation off and on through the operator's route, in interleaved blocks of different prompts, and prints
    tokens per second, time per token, and tokens per step at each concurrency, with intervals. The server must have
    been started with specplug. It keeps serving other clients, whom the switch affects, too. Afterwards its mode is
    restored.  The exit code is 1 if requests failed or texts differ.

    No prompt is sent twice while timed, so a run needs 2 x pairs x concurrencies x highest concurrency different ones;
    restart the server before a second run. Ratios are geometric means over the pairs, with 95% intervals (Student's t).
    The verdict is "faster" or "slower" only where the interval of the throughput excludes 1; else a line says how many
    more prompts would probably show a difference.

    A line of PROMPTS is a JSON object with "prompt", or with "messages" as in OpenAI chat requests and logs. A
    "prompt" is sent as a chat if the server's model has a chat template.

    Examples:

    `specplug bench http://127.0.0.1:8000`

    `specplug bench http://127.0.0.1:8000 logs.jsonl --concurrency 1,8,32 --pairs 5 --json`
    """
    from specplug.tools.bench.prompts import read_prompts
    from specplug.tools.bench.report import errors, rows

    given = read_prompts(prompts or [SHIPPED])[: blocks.limit]
    dealt = blocks.deal(given, seed)
    checked = given[: blocks.check]
    run = _run(server.client(url), blocks, dealt, checked, quiet=as_json)
    measured, same, about = asyncio.run(run_interruptible(run))
    compared = rows(measured, blocks.first_look)
    found = _Found(about, compared, same, len(checked), errors(measured))
    show(found.as_dict(), *found.parts(), as_json=as_json)
    if html is not None:
        shown = [*found.parts(), *(f"a request failed: {failure}" for failure in found.failures[:5])]
        title = f"specplug bench: {about['model']}"
        write_report(html, title, found.verdict(), shown, [_plot(compared)], found.as_dict())
    for failure in found.failures[:5] if not as_json else ():
        print_error(f"a request failed: {failure}")
    if found.failures or same < len(checked):
        raise typer.Exit(1)


class _Found(NamedTuple):
    """The results of a run: texts that were the same in both modes, of so many, and why requests failed."""

    about: dict[str, Any]
    rows: Sequence[Comparison]
    same: int
    checked: int
    failures: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the results ready for JSON."""
        check = {"identical": self.same, "requested": self.checked}
        rows = [row.as_dict() for row in self.rows]
        return {**self.about, "check": check, "rows": rows, "errors": self.failures, "note": NOTE}

    def parts(self) -> Iterator[Table | Text | str]:
        """Yield the results for people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.about["versions"].items())
        yield table(f"{self.about['model']} at {self.about['url']} ({versions})", _COLUMNS, map(_cells, self.rows))
        yield f"Texts identical in both modes: {self.same} of {self.checked}."
        yield from (row.advice for row in self.rows if row.advice)
        yield remark_text(NOTE)

    def verdict(self) -> Text:
        """Return the results in a line."""
        found = [f"{row.concurrency} in flight: {row.throughput.verdict}" for row in self.rows]
        wrong = ["texts differ"] * (self.same < self.checked) + ["requests failed"] * bool(self.failures)
        is_faster = all(row.throughput.verdict == "faster" for row in self.rows)
        return Text("; ".join(wrong + found), "red" if wrong else "green" if is_faster else "yellow")


async def _run(
    server: ServerClient, options: Blocks, blocks: Sequence[Block], check: Sequence[Prompt], *, quiet: bool
) -> tuple[list[Measured], int, dict[str, Any]]:
    """Return the results of the blocks, the number of texts identical in both modes, and the server's description."""
    from specplug.tools.bench.prompts import as_chats
    from specplug.tools.bench.report import look_counts, rows
    from specplug.tools.bench.run import keeping_mode, measure, same_texts

    pairs = 1 + max(block.pair for block in blocks)
    first_look = options.first_look
    stops = [pairs] if first_look is None else look_counts(first_look, pairs)

    def is_known(measured: Sequence[Measured]) -> bool:
        return rows(measured, first_look)[0].throughput.is_known

    async with server:
        status = await server.status()
        name = options.model or await server.model()
        has_template = not options.raw and await server.has_chat_template(name)
        print_note(server_form(has_template, raw=options.raw))
        if has_template:
            check = as_chats(check)
            blocks = [replace(block, prompts=tuple(as_chats(block.prompts))) for block in blocks]
        with progress(quiet=quiet) as bar:
            task = bar.add_task("asking", total=sum(len(block.prompts) for block in blocks))

            def advance(block: Block) -> None:
                label = f"{block.concurrency} in flight, pair {block.pair + 1}, speculation {block.mode}"
                bar.update(task, description=label, advance=1)

            async with keeping_mode(server):
                measured = await measure(server, name, blocks, options.max_tokens, advance, stops, is_known)
                bar.update(task, description="comparing texts")
                same = await same_texts(server, name, check, options.max_tokens)
    return measured, same, {"url": server.url, "model": name, "versions": status.versions}


_COLUMNS = (
    *("in flight", "tokens per second: off", "on", "ratio", "ms per token: off", "on", "ratio"),
    *("ms to first: off", "on", "tokens per step", "accepted", "verdict"),
)


def _cells(row: Comparison) -> list[str]:
    return [
        str(row.concurrency),
        f"{row.off.tokens_per_second:.1f}",
        f"{row.on.tokens_per_second:.1f}",
        str(row.throughput),
        f"{row.off.ms_per_token:.2f}",
        f"{row.on.ms_per_token:.2f}",
        str(row.time_per_token or ""),
        f"{row.off.ms_to_first:.1f}",
        f"{row.on.ms_to_first:.1f}",
        "" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
        "" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
        row.throughput.verdict,
    ]


def _plot(compared: Sequence[Comparison]) -> Plot:
    """Return what plots both modes' throughput, and the ratios with their intervals."""

    def draw(figure: Any) -> None:
        figure.set_size_inches(9, 3.2)
        speeds, ratios = figure.subplots(1, 2)
        places, names = range(len(compared)), [str(row.concurrency) for row in compared]
        for shift, colour, label in ((-0.2, "#9aa5b1", "off"), (0.2, "#2f6fde", "on")):
            heights = [getattr(row, label).tokens_per_second for row in compared]
            bars = speeds.bar([place + shift for place in places], heights, 0.4, label=label, color=colour)
            speeds.bar_label(bars, fmt="%.0f", padding=2)
        speeds.set_ylabel("tokens per second")
        speeds.legend(title="speculation", frameon=False)
        for place, row in zip(places, compared, strict=True):
            ratio = row.throughput
            if ratio.low is not None and ratio.high is not None:
                ratios.plot([place, place], [ratio.low, ratio.high], color="#2f6fde", linewidth=2)
            ratios.plot(place, ratio.mean, "o", color="#2f6fde")
        ratios.axhline(1.0, color="#9aa5b1", linestyle="--")
        ratios.set_xlim(-0.6, len(names) - 0.4)
        ratios.set_ylabel("throughput on / off, 95 % interval")
        for axes in (speeds, ratios):
            axes.set_xticks(list(places), names)
            axes.set_xlabel("requests in flight")
            axes.spines[["top", "right"]].set_visible(False)

    return draw
