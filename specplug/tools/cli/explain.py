"""`specplug explain` command: shows what drafted each token of an answer, and why the answer was slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlencode

import typer
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from specplug.errors import SettingsError
from specplug.explain.explanation import BARE, LOST, OWN, Explanation, explained, rows_of
from specplug.explain.requests import MAX_LISTED, Requests, requests_of
from specplug.explain.steps import Step
from specplug.text.token_texts import decoder
from specplug.text.tokenizers import load_tokenizer
from specplug.tools.cli.html_report import Html, write_report
from specplug.tools.cli.options import Server, with_groups
from specplug.tools.cli.output import AsJson, print_note, printable_text, show, table
from specplug.tools.client.http import ServerClient
from specplug.tools.client.interrupt import run_interruptible

M = TypeVar("M", bound=BaseModel)

_COLOURS = ("green", "cyan", "magenta", "yellow", "bright_blue", "bright_green")
_TINTS = ("#2a9d5c", "#2979c9", "#a04bb5", "#c98a00", "#00929b", "#c2487e")


@with_groups
def explain(
    source: Annotated[str, typer.Argument(metavar="URL|FILE", help="A server that writes a trace, or a trace.")],
    request: Annotated[
        str | None,
        typer.Argument(help="The `id` of an answer, or the begin of it; without one, a list."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="For a FILE: the model's folder or id, or a tokenizer.json; else ids are shown.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Look at this tenant's requests only.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with tooltips instead.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="Answers in each list, without a REQUEST.")] = 10,
    *,
    reached: Server,
    as_json: AsJson = False,
) -> None:
    """Show what drafted each token of an answer, where drafts were cut, and why the answer was slow.

    Without a REQUEST it lists the newest answers whose tokens took longest, and those with the fewest tokens per step.

    The server has to run with the setting `trace.path`, which is for debugging; it searches the newest 256 MiB.
    Operators see all requests; a tenant whose API key the server knows sees its own.

    Examples:

    `specplug explain http://127.0.0.1:8000`

    `specplug explain http://127.0.0.1:8000 chatcmpl-9f3a`

    `specplug explain run.jsonl request-7 --tokenizer ./my-model --html slow.html`
    """
    server = reached.client(source) if source.startswith(("http://", "https://")) else None
    if request is None:
        if html is not None:
            remedy = "Name a REQUEST; without one, answers are listed, also with --json"
            raise SettingsError.build("a page shows one answer", who="--html", remedy=remedy)
        if server is None:
            listed = requests_of(source, tenant, None, limit)
        else:
            listed = asyncio.run(run_interruptible(_asked(server, Requests, tenant, limit=str(limit))))
        show(listed.model_dump(), *_lists(listed), as_json=as_json)
        return
    if server is not None:
        found = asyncio.run(run_interruptible(_asked(server, Explanation, tenant, request=request)))
    else:
        library = None if tokenizer is None else load_tokenizer(tokenizer).library
        found = explained(rows_of(source, request, tenant), decoder(library))
    if html is None:
        show(found.model_dump(), *_parts(found), as_json=as_json)
        return
    first, *more = found.verdict or [found.title]
    write_report(html, found.title, Text(first), [*more, *page_parts(found)], None, found.model_dump())
    print_note(f"{html} is written")


async def _asked(server: ServerClient, kind: type[M], tenant: str | None, **query: str) -> M:
    query |= {} if tenant is None else {"tenant": tenant}
    async with server:
        return await server.ask(kind, "GET", f"/specplug/explain?{urlencode(query)}", operator=True)


def _lists(listed: Requests) -> Iterator[Table | str]:
    columns = ("request", "ms per token", "tokens per step", "tokens", "drafted", "kept")
    for title, part in (("the slowest", listed.slowest), ("with the fewest tokens per step", listed.worst_drafted)):
        rows = [
            (
                each.request + (f" (tenant {each.tenant})" if each.tenant else ""),
                f"{each.ms_per_token:.1f}",
                f"{each.tau:.2f}",
                *map(str, (each.tokens, each.drafted, each.kept)),
            )
            for each in part
        ]
        yield table(f"{title} of {listed.requests} answers", columns, rows)
    yield "Tokens and times are those after the first step. `specplug explain SOURCE REQUEST` explains one of them."


def _parts(found: Explanation) -> Iterator[Table | Text | str]:
    styles = dict(zip(found.sources, cycle(_COLOURS), strict=False)) | {OWN: "", BARE: "dim", LOST: "bold red"}
    yield Text.assemble(*((printable_text(text), styles[kind]) for text, kind, _ in found.spans()))
    rows = [(Text(printable_text(kind), styles[kind]), of) for kind, of in found.legend()]
    yield ""
    yield table(found.title, ("given by", "how much"), rows)
    yield from (f"- {sentence}" for sentence in found.verdict)


def page_parts(explanation: Explanation) -> Iterator[Html]:
    """Yield the answer, coloured by what drafted it, its legend and its steps; whatever is shown is escaped."""
    tints = zip(explanation.sources, cycle(_TINTS), strict=False)
    styles = {source: f"background:{colour}55" for source, colour in tints}
    styles |= {OWN: "", BARE: "opacity:.6", LOST: "color:#d33;font-size:80%"}
    spans = (
        f'<span style="{styles[kind]}" title="{escape(about)}">{escape(text)}</span>'
        for text, kind, about in explanation.spans()
    )
    yield Html(f'<pre class="text">{"".join(spans)}</pre>')
    legend = (
        f'<tr><td><span style="{styles[kind]}">{escape(kind)}</span></td><td>{escape(of)}</td></tr>'
        for kind, of in explanation.legend()
    )
    yield Html(f"<table>{''.join(legend)}</table>")
    yield Html(_bars(explanation.steps))


def _bars(steps: list[Step]) -> str:
    """Return a bar for each step, as high as it was long."""
    seconds = [step.seconds or 0.0 for step in steps]
    longest = max(seconds) or 1.0
    bars = []
    for place, (step, took) in enumerate(zip(steps, seconds, strict=True)):
        about = f"step {step.step}: {1000 * took:.1f} ms, {step.batch} in the batch, {step.reason}"
        top = 60 - 60 * took / longest
        colour = _TINTS[0] if step.accepted else "#888"
        bar = f'<rect x="{place}" y="{top:.1f}" width=".8" height="60" fill="{colour}">'
        bars.append(f"{bar}<title>{escape(about)}</title></rect>")
    return (
        f"<p>The time of each step, up to {1000 * max(seconds):.0f} ms; green where draft tokens were kept:</p>"
        f'<svg class="bars" viewBox="0 0 {len(steps)} 60" preserveAspectRatio="none">{"".join(bars)}</svg>'
    )
