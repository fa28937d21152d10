"""Tests of the retrieval examples that hold on every engine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.launch import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import rag_client
import rag_tasks
import serving_demo

sys.path.remove(str(ROOT / "examples"))

WANTED = "Return the rows of a table that match a given query, in the order in which they were added."
TEXTS = (
    f"select: {WANTED}",
    "remove: Take the given rows out of a table and close the gaps that they leave behind.",
    "Connection: A connection to the server, which is closed when it is no longer used.",
)
REQUESTED = "Return the rows of"
TEMPLATE = "<|document|>{passage}<|quote|>{question}<|answer|>"
PLAIN, ALONE = "no speculation", "specplug"
FED = ("specplug, with references", "specplug, corpus store", "corpus store, documents named")


def client_answers(run: Callable[..., str], url: str, model: str, engine: str, folder: Path) -> None:
    """Run the client on three texts: it must quote the right one, in fewer steps than tokens."""
    (folder / "texts.md").write_text("\n\n".join(TEXTS))
    values = {"URL": url, "MODEL": model, "FOLDER": str(folder), "How is a draft cut to its budget?": REQUESTED}
    out = run("rag_client.py", "--engine", engine, "--template", TEMPLATE, values=values)
    answer, summary = out.strip().split("\n---\n")
    assert answer.strip() == WANTED
    found, tokens, steps = map(int, re.findall(r"\d+", summary))
    assert (found, tokens > 2 * steps > 0) == (2, True), summary


def references_gain(server: Any, engine: str) -> None:
    """Ask a server that runs with specplug for records, without and with references: the same texts, in fewer steps."""
    texts: list[list[str]] = []
    steps = []
    for is_referring in (False, True):
        before, stated = rag_client.counts(server.url), []
        for question in rag_tasks.questions("records", 3):
            extra = rag_client.references(engine, question.references if is_referring else ())
            extra[rag_client.FIELDS[engine]]["specplug_store"] = 0  # no response memory
            stated.append(serving_demo.ask(server, question.prompt, stream=False, extra=extra)[0])
        texts.append(stated)
        steps.append(rag_client.counts(server.url)[1] - before[1])
    assert texts[0] == texts[1]
    assert steps[0] > 1.25 * steps[1] > 0, steps


def demo_compares(out: str, engine: str, tasks: int) -> None:
    """Read the demo's JSON: nothing differs, and texts that the prompt does not hold make steps longer."""
    stated = json.loads(out)
    assert stated["engine"] == engine
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in stated["rows"]:
        found.setdefault(row["task"], {})[row["mode"]] = row
        assert (row["identical"], row["tasks"]) == (tasks, tasks), row
    assert [*found] == ["records", "answers", "quote"]
    for situation, arms in found.items():
        assert [*arms] == [PLAIN, ALONE, *FED]
        assert arms[PLAIN]["acceptance_rate"] is None
        if situation != "quote":
            assert all(arms[fed]["tokens_per_step"] > 1.15 * arms[ALONE]["tokens_per_step"] for fed in FED), arms
