"""`specplug list` command: lists the installed plug-ins and those that failed to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from specplug.errors import PluginError, suggest
from specplug.plugins.registry import KINDS, Registry, default_registry
from specplug.plugins.specs import PluginSpec
from specplug.tools.cli.output import AsJson, show, table


def _known_kind(kind: str | None) -> str | None:
    if kind is not None and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is not a kind of plug-in. {suggest(kind, KINDS)}")
    return kind


def list_plugins(
    kind: Annotated[
        str | None, typer.Option(callback=_known_kind, metavar="KIND", help=f"Only this kind: {', '.join(KINDS)}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the installed plug-ins: their kind, name, package, version and capabilities.

    Plug-ins that failed to load, and names that two packages claim, are listed below with the reason; everything else
    keeps working.

    Example: `specplug list --kind proposer`
    """
    registry = default_registry()
    plugins = _plugins(registry, kind)
    errors = _errors(registry)
    tables = [_table("Plug-ins", plugins)]
    if errors:
        tables.append(_table("Failed to load", errors))
    show({"plugins": plugins, "errors": errors}, *tables, as_json=as_json)


def _plugins(registry: Registry, kind: str | None) -> list[dict[str, Any]]:
    return [
        {
            "kind": entry.spec.kind,
            "name": entry.spec.name,
            "package": entry.owner.package,
            "version": entry.owner.version,
            "capabilities": _capabilities(entry.spec),
            "summary": entry.spec.summary,
        }
        for name, spec_type in KINDS.items()
        if kind in (None, name)
        for entry in registry.entries(spec_type).values()
    ]


def _capabilities(spec: PluginSpec) -> list[str]:
    """Return a plug-in's labels, or the error that prevents them: a broken plug-in must not hide the others."""
    try:
        return list(spec.labels())
    except PluginError as error:
        return [f"unknown: {error}"]


def _errors(registry: Registry) -> list[dict[str, Any]]:
    return [
        {
            "package": failure.owner.package,
            "version": failure.owner.version,
            "entry_point": failure.owner.plugin,
            "stage": failure.stage,
            "error": failure.error,
        }
        for failure in registry.load_errors
    ]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return rows of the JSON as a table; the columns are the keys."""
    cells = ([", ".join(value) if isinstance(value, list) else value for value in row.values()] for row in rows)
    return table(title, [key.replace("_", " ") for key in rows[0]] if rows else [], cells, whole=2)
