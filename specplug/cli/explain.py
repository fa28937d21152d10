"""`specplug explain` command: shows what drafted each token of an answer, and why the answer was slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer
from rich.table import Table
from rich.text import Text

from specplug.cli.launch import ApiKey, OperatorKey, Timeout
from specplug.cli.output import AsJson, dim, note, printable, show, table
from specplug.client.http import PATIENCE, ServerClient
from specplug.errors import RequestError
from specplug.explain.explanation import Explanation, Step, explained, rows_of
from specplug.explain.page import page
from specplug.text.token_texts import decoder
from specplug.text.tokenizers import load_tokenizer

COLOURS = ("green", "blue", "magenta", "yellow", "cyan", "red")


def explain(
    source: Annotated[str, typer.Argument(metavar="URL|FILE", help="A server that writes a trace, or a trace.")],
    request: Annotated[str, typer.Argument(help="The `id` of an answer, or the begin of it.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="For a FILE: the model's folder or id, or a tokenizer.json; else ids are shown.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Look at this tenant's requests only.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with tooltips instead.")] = None,
    api_key: ApiKey = None,
    operator_key: OperatorKey = None,
    timeout: Timeout = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Show what drafted each token of an answer, where drafts were cut, and why the answer was slow.

    The server has to run with the setting `trace.path`, which is for debugging. Operators see all requests; a tenant
    whose API key the server knows sees its own.

    Examples:

    `specplug explain http://127.0.0.1:8000 chatcmpl-9f3a`

    `specplug explain run.jsonl request-7 --tokenizer ./my-model --html slow.html`
    """
    if source.startswith(("http://", "https://")):
        found = asyncio.run(
            _asked(ServerClient(source, api_key=api_key, operator_key=operator_key, patience=timeout), request, tenant)
        )
    else:
        library = None if tokenizer is None else load_tokenizer(tokenizer).library
        found = explained(rows_of(source, request, tenant), decoder(library))
    if html is not None:
        _write(html, page(found))
        note(f"{html} is written")
        return
    show(found.model_dump(), *_parts(found), as_json=as_json)


async def _asked(server: ServerClient, request: str, tenant: str | None) -> Explanation:
    query = {"request": request} | ({} if tenant is None else {"tenant": tenant})
    async with server:
        return await server.ask(Explanation, "GET", f"/specplug/explain?{urlencode(query)}", operator=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError.build("cannot write the page", who=str(path), found=error.strerror) from error


def _parts(found: Explanation) -> Iterator[Table | Text | str]:
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(found.sources)}
    count, owner = sum(len(step.tokens) for step in found.steps), f", tenant {found.tenant}" if found.tenant else ""
    text = Text()
    for step in found.steps:
        text.append_text(_shown(step, colours))
    yield text
    yield ""
    rows = [
        [
            Text(printable(name), style=colours[name]),
            str(by.accepted),
            str(by.drafted),
            f"{by.accepted / by.drafted:.0%}",
        ]
        for name, by in found.sources.items()
    ]
    title = f"{found.request}{owner}: {count} tokens in {len(found.steps)} steps, {found.tau:.2f} a step"
    yield table(title, ("drafted by", "tokens kept", "drafted", "share kept"), rows)
    if found.undrafted:
        yield "Steps without a draft: " + _listed(found.undrafted)
    if found.unkept:
        yield "Draft tokens not kept: " + _listed(found.unkept)
    length, begin = found.driest
    yield f"Longest part without a kept draft token: {length} tokens, from token {begin} on."
    yield from (f"- {sentence}" for sentence in found.verdict)
    yield dim("Colours: what drafted a token. Faint: a step without a draft. [-3]: three draft tokens were not kept.")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in sorted(counts.items(), key=lambda item: -item[1])) + "."


def _shown(step: Step, colours: dict[str, str]) -> Text:
    """Return a step's tokens, with a mark where its draft was cut."""
    text = Text()
    for place, token in enumerate([*step.tokens, None]):
        if place == step.accepted and step.lost and step.reason not in ("accepted", "stopped"):
            text.append(
                f"[-{len(step.lost)}]" if step.reason == "rejected" else f"[-{len(step.lost)} {step.reason}]",
                style="bold red",
            )
        if token is not None:
            style = "" if step.drafted else "dim"
            text.append(printable(token.text), style=colours[token.source] if token.source else style)
    return text
