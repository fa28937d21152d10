"""What the tests of the three kits share: the clauses of a contract, and the examples of the page on plug-ins."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "writing-plugins.md").read_text(encoding="utf-8")


def clauses(contract: type) -> set[str]:
    """Return the names of a contract's tests, each of which has to state its clause."""
    tests = [test for test in inspect.getmembers(contract, inspect.isfunction) if test[0].startswith("test_")]
    assert [name for name, test in tests if not test.__doc__] == []
    return {name for name, _ in tests}


def code_block(containing: str, language: str = "python") -> str:
    """Return the only block of code of the page with this text."""
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in block]
    return found
