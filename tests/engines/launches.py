"""The table of launches per step in docs/design.md, to which tests on the engines hold what they count."""

from __future__ import annotations

import re

from tests.engines.launch import ROOT

ROW = re.compile(r"^\| ([^|]+) \| (\d+) \|$", re.MULTILINE)


def most(*words: str) -> int:
    """Return the most launches of the only step in the table whose name holds all of these words."""
    section = (ROOT / "docs" / "design.md").read_text().partition("## Launches per step")[2].partition("\n## ")[0]
    (found,) = [int(count) for name, count in ROW.findall(section) if all(word in name for word in words)]
    return found
