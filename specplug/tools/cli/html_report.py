"""The report of a command as one HTML file that can be handed on: verdict, tables, plots, command, versions, JSON."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from specplug import __version__
from specplug.errors import SpecplugError

Plot = Callable[[Any], None]
"""Draws on a `matplotlib.figure.Figure`."""


class Html(str):
    """A part of a page that is HTML already."""


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #d9e2ec }
p, pre, td { white-space: pre-wrap } p, pre { overflow-wrap: anywhere } svg { max-width: 100%; height: auto }
pre { background: #f5f7fa; padding: .6rem; font-size: 13px }
pre.text { font-size: 14px; line-height: 1.6 } pre span { border-radius: 2px } .bars { width: 100%; height: 60px }
.verdict { font-size: 1.2rem; font-weight: 600; border-left: .4rem solid; padding-left: .8rem }
.green { color: #18794e } .red { color: #c62828 } .yellow { color: #9a6700 } .dim { color: #616e7c }
</style></head><body><h1>$title</h1><p class="verdict $style">$verdict</p>
$parts$plots<h2>How it was made</h2><table>$facts</table>
<details><summary>All figures, as JSON</summary><pre>$data</pre></details></body></html>
""")
_STYLES = ("green", "red", "yellow", "dim")
_KEYS = ("--api-key", "--operator-key")
_PASSWORD = re.compile(r"(https?://)[^/@\s\"<>]*@")


def _checked(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before the work is done."""
    if path is not None and (
        path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK)
    ):
        expected = "a file that can be written, in a folder that exists"
        raise SpecplugError.build("cannot write the report", who="--html", found=str(path), expected=expected)
    return path


HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", callback=_checked, help="Write the report as one HTML file, too."),
]


def write_report(
    path: Path, title: str, verdict: Text, parts: Sequence[Table | Text | str], plots: Sequence[Plot] | None, data: Any
) -> None:
    """Write what a command has shown, with a plot of each function, if it has any; keys and passwords are left out.

    A file that cannot be written raises `SpecplugError`.
    """
    facts = {
        "command": f"specplug {shlex.join(without_keys(sys.argv[1:]))}",
        "specplug": __version__,
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "written": datetime.now().astimezone().isoformat(" ", timespec="seconds"),
    }
    page = _PAGE.substitute(
        title=escape(title),
        style=_style(verdict),
        verdict=escape(verdict.plain),
        parts="\n".join(_html(part) for part in parts),
        plots="" if plots is None else "\n".join(_plots(plots)),
        facts="".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()),
        data=escape(json.dumps(data, indent=2, default=str)),
    )
    try:
        path.write_text(_PASSWORD.sub(r"\1***@", page), encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecplugError.build("cannot write the report", who=str(path), found=str(error)) from error


def without_keys(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with KEY for keys."""
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        found.append("KEY" if before in _KEYS else f"{name}=KEY" if equals and name in _KEYS else word)
    return found


def _html(part: Table | Text | str) -> str:
    if isinstance(part, Html):
        return part
    if not isinstance(part, Table):
        text = part if isinstance(part, Text) else Text(part)
        return f'<p class="{_style(text)}">{escape(text.plain)}</p>'
    head = "".join(f"<th>{escape(str(column.header))}</th>" for column in part.columns)
    rows = zip(*(column.cells for column in part.columns), strict=True)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    caption = f"<caption>{escape(str(part.title or ''))}</caption>"
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Any) -> str:
    return f'<td class="{_style(cell)}">{escape(str(cell))}</td>'


def _style(text: Any) -> str:
    return next((style for style in _STYLES if style in str(getattr(text, "style", "")).split()), "")


def _plots(plots: Sequence[Plot]) -> Iterator[str]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        yield f'<p class="dim">{escape("No plots: matplotlib is missing (pip install specplug[plot]).")}</p>'
        return
    for number, draw in enumerate(plots):
        svg = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"plot {number}", "font.size": 9}):
            figure = Figure(layout="constrained")
            draw(figure)
            figure.savefig(svg, format="svg", metadata={"Date": None})
        yield svg.getvalue().partition("<svg")[2].join(["<svg", ""])
