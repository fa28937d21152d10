"""Links lead somewhere, and the documentation's tree is the real one; `test_examples` runs the README's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("examples/models", "benchmarks/simulate")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *(ROOT / name / "README.md" for name in FOLDERS)]


def block(language: str, containing: str, page: str = README) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", page, re.S) if containing in text]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (page.parent / target).exists()]


def test_every_page_of_the_documentation_is_linked():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert "docs/README.md" in README
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index + "(README.md)"]


def test_the_tree_names_what_is_there():
    tree = block("text", "the core; knows no engine", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    named = re.findall(r"^(?:  )?([\w./ ]+?)(?:  |$)", tree, re.M)
    for line, names in zip(tree.splitlines(), named, strict=False):
        folder = ROOT / "specplug" if line.startswith("  ") else ROOT
        for name in names.split():
            assert (folder / name).exists(), name
