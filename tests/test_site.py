"""`make docs` builds the pages as a site."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"

pytestmark = pytest.mark.slow  # makes an environment of its own


@pytest.fixture(scope="module", autouse=True)
def built():
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def html(path: str) -> str:
    return (SITE / path / "index.html").read_text(encoding="utf-8")


def test_pages_come_in_the_order_of_the_table_of_contents():
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    shown = re.findall(r'href="\.\./([\w-]+)/" class="md-nav__link"', html("docs/serving"))
    assert set(listed) == {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}
    assert [name for name in listed if name in shown] == shown
    assert len(shown) > 15


def test_search_knows_the_pages_and_not_the_code():
    entries = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].partition("#")[0] for entry in entries}
    assert {f"docs/{page.stem}/" for page in (ROOT / "docs").glob("*.md") if page.stem != "README"} <= found
    assert not [place for place in found if ".py" in place]


def test_links_to_examples_lead_to_pages_that_show_them():
    assert 'href="../../examples/rag_client.py/"' in html("docs/rag")
    assert "bm25s" in html("examples/rag_client.py")


def test_the_notebook_is_a_page_with_its_output():
    assert "tokens in 4 steps of the model" in html("examples/quickstart.ipynb")
