"""Commands of the examples, taken from their docstrings."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def commands() -> dict[str, str]:
    """Return the first command of every example that has one, by the name of its file."""
    found = {}
    for file in sorted(EXAMPLES.glob("*.py")):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        lines = [line.strip() for line in text.splitlines()]
        stated = [line for line in lines if re.match(rf"\S*python examples/{file.name}\b", line)]
        if stated:
            found[file.name] = stated[0]
    return found


def command(name: str, placeholders: Mapping[str, str] | None = None) -> list[str]:
    """Return an example's command, run by this interpreter, with values for placeholders and no optional arguments."""
    words = shlex.split(re.sub(r"\[[^\]]*\]", "", commands()[name]))
    return [sys.executable, *((placeholders or {}).get(word, word) for word in words[1:])]
