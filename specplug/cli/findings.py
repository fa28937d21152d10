"""Results of `specplug doctor`'s checks, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from specplug.cli.output import print_table

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
"""The colour of each status."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result, with the check and package that produced it."""

    check: str
    owner: str
    status: str
    summary: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PairingFinding(Finding):
    """One result about a pair of models, with its figures for programs."""

    figures: dict[str, Any] = field(default_factory=dict)


def finding(check: str, status: str, summary: str, remedy: str = "", **figures: Any) -> PairingFinding:
    """Return one result of the core about a pair of models."""
    return PairingFinding(check, "specplug", status, summary, remedy, figures)


def print_findings(title: str, findings: Iterable[Finding]) -> None:
    """Print results as a table."""
    print_table(
        title,
        ("check", "status", "found", "remedy"),
        ((f.check, Text(f.status, style=COLOURS[f.status]), f.summary, f.remedy) for f in findings),
    )
