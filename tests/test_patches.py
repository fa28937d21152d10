"""The page of what is patched: it is up to date, and its tables mark what the adapters' code patches."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.patches import ENGINES, PAGE, PARTS, render


def code(engine: str) -> list[str]:
    """Return the texts of an adapter's files, without the table."""
    files = Path(str(ENGINES[engine].__file__)).parent.rglob("*.py")
    return [path.read_text(encoding="utf-8") for path in files if path.name != "seams.py"]


def test_the_page_is_that_of_the_tables():
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m tests.patches"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_part_is_described(engine):
    assert set(PARTS[engine]) == {part for seam in ENGINES[engine].SEAMS for part in seam.where}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_code_hooks_is_marked(engine):
    marked = {name.rpartition(".")[2] for seam in ENGINES[engine].SEAMS for name in seam.patched}
    calls = [
        node
        for text in code(engine)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hook"
    ]
    hooked = {str(node.args[1].value) for node in calls if isinstance(node.args[1], ast.Constant)}
    assert len(hooked) >= 8
    assert hooked <= marked


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_marked_is_named_in_the_code(engine):
    texts = [node for text in code(engine) for node in re.findall(r"\"[^\"\n]*\"", text)]
    for seam in ENGINES[engine].SEAMS:
        for name in seam.patched:
            last = name.rpartition(".")[2]
            assert any(text.strip('"').rpartition(".")[2] == last for text in texts), name
