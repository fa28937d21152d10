"""The shipped traces, their sources and notices; and the documentation's statements on traces and replay."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest

from specplug.replay.items import Item, read_traces

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDER = importlib.resources.files("specplug.replay") / "traces"
FILES = {path.name.removesuffix(".jsonl"): path for path in FOLDER.iterdir() if path.name.endswith(".jsonl")}
REDISTRIBUTABLE = {
    "agentic": r"tau-bench/gpt-4o-airline/task\d+",
    "code_edit": r"CPython stdlib 3\.\d+\.\d+->3\.\d+\.\d+ [\w/.]+\.py",
    "structured": r"gorilla/huggingface_oracle/Gorilla_RT",
}
"""What `source` may say, by workload.  Other sources of these workloads must not be published."""


def items(workload: str) -> list[dict]:
    return [json.loads(line) for line in FILES[workload].read_text(encoding="utf-8").splitlines()]


def test_every_file_has_a_source_that_may_be_passed_on():
    assert set(FILES) == set(REDISTRIBUTABLE)


@pytest.mark.parametrize("workload", REDISTRIBUTABLE)
def test_items_are_whole_and_from_the_named_source(workload):
    found = items(workload)
    assert len({item["id"] for item in found}) == len(found) >= 6
    for item in found:
        assert set(item) == {"id", "workload", "source", "prompt", "documents", "output"}
        assert item["workload"] == workload
        assert re.fullmatch(REDISTRIBUTABLE[workload], item["source"]), item["source"]
        assert item["prompt"]
        assert item["output"]
        assert all(document in item["prompt"] for document in item["documents"])


def test_conversations_are_whole_and_in_order():
    """Serving mode keeps state between requests: that means something only where requests belong together."""
    turns: dict[str, list[str]] = {}
    for item in items("agentic"):
        turns.setdefault(item["source"], []).append(item["prompt"])
    assert sorted(map(len, turns.values())) == [18, 18]
    for prompts in turns.values():
        for before, after in itertools.pairwise(prompts):
            assert after.startswith(before.removesuffix("<|assistant|>\n"))


def test_no_file_carries_a_notice_of_another_author():
    texts = [item["prompt"] + item["output"] for item in items("code_edit")]
    assert not [text for text in texts if re.search(r"copyright|licensed", text, re.IGNORECASE)]


def test_the_notices_name_every_file_its_project_and_its_licence():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)\.jsonl`", readme)) == set(FILES)
    licences = {path.name for path in (FOLDER / "licences").iterdir()}
    assert set(re.findall(r"licences/([\w.-]+\.txt)", readme)) == licences
    for notice, licence in (
        ("Copyright (c) 2001-2024 Python Software Foundation", "PSF-2.0.txt"),
        ("Copyright (c) 2024 Sierra", "MIT.txt"),
    ):
        text = " ".join((FOLDER / "licences" / licence).read_text(encoding="utf-8").split())
        assert notice in readme
        assert notice.removeprefix("Copyright (c) 2001-2024 ") in text
    for row in re.findall(r"^\| `(\w+)\.jsonl` \| (\d+) \|", readme, re.MULTILINE):
        assert len(items(row[0])) == int(row[1])


def test_the_package_names_and_carries_their_licences():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = {path.name for path in (FOLDER / "licences").iterdir()}
    table = re.findall(r"\[([\w.-]+)\]\(licences/([\w.-]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert {f"{name}.txt" for name, _ in table} == {file for _, file in table} == texts
    assert set(project["license"].split(" AND ")) == {name for name, _ in table}
    carried = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    traces = ROOT / "specplug" / "replay" / "traces"
    assert carried == {ROOT / "LICENSE", traces / "README.md", *(traces / "licences" / name for name in texts)}


def test_the_traces_stay_small():
    assert sum(len(path.read_bytes()) for path in FILES.values()) < 700_000


def documentation(language: str) -> str:
    text = (DOCS / "replay.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[-1]


def test_the_documented_item_is_one_and_its_table_names_the_fields(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text(documentation("json"))
    ((workload, (item,)),) = read_traces(path).items()
    assert (workload, item.id, item.documents) == ("support", "a-1", ("...",))
    table = (DOCS / "replay.md").read_text(encoding="utf-8").split("| Field |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(Item.model_fields)


def test_the_documented_program_prints_what_it_says(monkeypatch, capsys):
    monkeypatch.delenv("SPECPLUG_CONFIG", raising=False)
    monkeypatch.chdir(DOCS.parent)
    example = documentation("python").strip()
    *_, shown = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    exec(example, {})
    assert capsys.readouterr().out.strip() == shown
