"""The reader of traces that docs/trace.md shows, and rows as the writer has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from specplug.trace import TraceRow

PAGE = (Path(__file__).parents[1] / "docs" / "trace.md").read_text(encoding="utf-8")
READER, EXAMPLE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

shown: dict[str, Any] = {}
exec(READER, shown)


def read_trace(path: Path) -> list[TraceRow]:
    """Return the rows of a trace, by the page's reader."""
    lists = ("ids", "confidence", "source")
    return [TraceRow(**row | {name: tuple(row[name]) for name in lists}) for row in shown["read_trace"](path)]
