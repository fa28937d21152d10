"""`make docs` builds the pages as a site."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"


@pytest.mark.slow  # makes an environment of its own
class TestSite:
    @pytest.fixture(scope="class", autouse=True)
    def built(self):
        done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    def html(self, path: str) -> str:
        return (SITE / path / "index.html").read_text(encoding="utf-8")

    def test_pages_come_in_the_order_of_the_table_of_contents(self):
        listed = re.findall(r"\]\(([\w-]+)\.md\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
        shown = re.findall(r'href="\.\./([\w-]+)/" class="md-nav__link"', self.html("docs/serving"))
        assert set(listed) == {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}
        assert [name for name in listed if name in shown] == shown
        assert len(shown) > 15

    def test_search_knows_the_pages_and_not_the_code(self):
        entries = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
        found = {entry["location"].partition("#")[0] for entry in entries}
        assert {f"docs/{page.stem}/" for page in (ROOT / "docs").glob("*.md") if page.stem != "README"} <= found
        assert not [place for place in found if ".py" in place]

    def test_links_to_examples_lead_to_pages_that_show_them(self):
        assert 'href="../../examples/rag_client.py/"' in self.html("docs/rag")
        assert "bm25s" in self.html("examples/rag_client.py")

    def test_the_notebook_is_a_page_with_its_output(self):
        assert "tokens in 4 steps of the model" in self.html("examples/quickstart.ipynb")
