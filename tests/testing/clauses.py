"""What the tests of the three kits share: the clauses of a contract, and the page that documents them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "writing-plugins.md").read_text(encoding="utf-8")


def clauses(contract: type) -> set[str]:
    """Return the names of a contract's tests."""
    return {name for name, _ in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")}


def documented(section: str) -> set[str]:
    """Return the tests that a section of the page names."""
    return set(re.findall(r"`(test_\w+)`", PAGE.split(f"\n## {section}")[1].split("\n## ")[0]))


def code_block(containing: str, language: str = "python") -> str:
    """Return the only block of code of the page with this text."""
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in block]
    return found
