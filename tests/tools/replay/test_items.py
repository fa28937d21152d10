"""Recorded items: files of them, the shipped ones and their notices, tokens, and corpora of their documents."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from specplug.corpus.view import View
from specplug.errors import SettingsError, TraceError
from specplug.text.tokenizers import load_tokenizer
from specplug.tools.replay.engine import Setup
from specplug.tools.replay.items import (
    DISTRACTOR_TOKENS,
    Item,
    corpora_of,
    distractor_corpora,
    read_traces,
    tokenize,
    without_documents,
)
from specplug.tools.replay.run import replay
from tests.tools.cli.tools import stated
from tests.tools.replay.tools import Planted, item, registry

GOOD = {"id": "1", "workload": "chat", "source": "x", "prompt": "Hi", "documents": ["D"], "output": "Hello"}


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_folder_is_read_by_name_and_items_keep_their_order(tmp_path):
    write(tmp_path / "b.jsonl", GOOD | {"workload": "rag"})
    write(tmp_path / "a.jsonl", GOOD | {"id": "2"}, "", GOOD)
    (tmp_path / "other.txt").write_text("no trace")
    found = read_traces(tmp_path)
    assert list(found) == ["chat", "rag"]
    assert [item.id for item in found["chat"]] == ["2", "1"]
    assert found["chat"][1] == Item(id="1", workload="chat", prompt="Hi", documents=("D",), output="Hello")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({k: v for k, v in GOOD.items() if k != "output"}, ["output", "required"]),
        (GOOD | {"prompt": 3}, ["prompt", "string"]),
        (GOOD | {"documents": "D"}, ["documents"]),
        ("{not json", ["JSON"]),
        ([1], ["object"]),
        ({"messages": [{"role": "user", "content": "Hi?"}]}, ["no item of a trace", "the last is the assistant's"]),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line, words):
    path = write(tmp_path / "a.jsonl", GOOD, line)
    with pytest.raises(TraceError) as error:
        read_traces(path)
    for word in [f"{path}, line 2", *words]:
        assert word in str(error.value)


def test_ids_are_unique_within_a_file(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD, GOOD)
    with pytest.raises(TraceError, match=r"line 2: duplicate id; found '1' again, first on line 1"):
        read_traces(path)


def test_no_items_and_no_file_are_errors(tmp_path):
    with pytest.raises(TraceError, match="no items"):
        read_traces(tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        read_traces(tmp_path / "gone.jsonl")


def test_outputs_end_with_eos_and_nothing_else_is_added():
    tokenizer = load_tokenizer("tiny")
    (item,) = tokenize([Item.model_validate_json(json.dumps(GOOD))], tokenizer)
    assert item.output.tolist() == [*tokenizer.encode("Hello"), tokenizer.eos_id]
    assert item.prompt.tolist() == tokenizer.encode("Hi").tolist()
    assert [d.tolist() for d in item.documents] == [tokenizer.encode("D").tolist()]
    assert not item.prompt.flags.writeable


def test_tekken():
    pytest.importorskip("mistral_common")
    tokenizer = load_tokenizer("tekken")
    assert (tokenizer.eos_id, tokenizer.fingerprint.vocab_size) == (2, 131_072)
    assert tokenizer.encode("Hello world").tolist() == [22177, 4304]


def test_a_tokenizer_without_an_end_says_what_to_add(tmp_path):
    from tokenizers import Tokenizer, models

    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(file))
    with pytest.raises(SettingsError, match=r"no end-of-sequence token.*tokenizer_config\.json"):
        tokenize([Item.model_validate_json(json.dumps(GOOD))], load_tokenizer(str(file)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "b"}}))
    assert load_tokenizer(str(file)).eos_id == 1


def test_chat_logs_are_items(tmp_path):
    parts = [{"type": "text", "text": "What is "}, {"type": "image_url"}, {"type": "text", "text": "this?"}]
    requested = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answered = [*requested, {"role": "assistant", "content": "A cat."}]
    called = [*requested, {"role": "assistant", "content": None, "tool_calls": []}]
    lines = [{"messages": answered}, {"messages": called, "id": "b", "workload": "tools"}]
    file = tmp_path / "support.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = read_traces(file)
    prompt = "Be brief.\n\nWhat is this?"
    assert found == {
        "support": [Item(id="1", workload="support", prompt=prompt, output="A cat.")],
        "tools": [Item(id="b", workload="tools", prompt=prompt, output="")],
    }


ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FOLDER = importlib.resources.files("specplug.tools.replay") / "traces"
FILES = {path.name.removesuffix(".jsonl"): path for path in FOLDER.iterdir() if path.name.endswith(".jsonl")}
REDISTRIBUTABLE = {
    "agentic": r"tau-bench/gpt-4o-airline/task\d+",
    "code_edit": r"CPython stdlib 3\.\d+\.\d+->3\.\d+\.\d+ [\w/.]+\.py",
    "structured": r"gorilla/huggingface_oracle/Gorilla_RT",
}
"""What `source` may say, by workload.  Other sources of these workloads must not be published."""


def shipped(workload: str) -> list[dict]:
    return [json.loads(line) for line in FILES[workload].read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("workload", REDISTRIBUTABLE)
def test_items_are_whole_and_from_the_named_source(workload):
    assert set(FILES) == set(REDISTRIBUTABLE)
    found = shipped(workload)
    assert len({row["id"] for row in found}) == len(found) >= 6
    for row in found:
        assert set(row) == {"id", "workload", "source", "prompt", "documents", "output"}
        assert row["workload"] == workload
        assert re.fullmatch(REDISTRIBUTABLE[workload], row["source"]), row["source"]
        assert row["prompt"]
        assert row["output"]
        assert all(document in row["prompt"] for document in row["documents"])


def test_conversations_are_whole_and_in_order():
    """Serving mode keeps state between requests: that means something only where requests belong together."""
    turns: dict[str, list[str]] = {}
    for row in shipped("agentic"):
        turns.setdefault(row["source"], []).append(row["prompt"])
    assert sorted(map(len, turns.values())) == [18, 18]
    for prompts in turns.values():
        for before, after in itertools.pairwise(prompts):
            assert after.startswith(before.removesuffix("<|assistant|>\n"))


def test_files_are_small_and_none_carries_a_notice_of_another_author():
    assert sum(len(path.read_bytes()) for path in FILES.values()) < 700_000
    texts = [item["prompt"] + item["output"] for item in shipped("code_edit")]
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
        assert len(shipped(row[0])) == int(row[1])


def test_the_package_names_and_carries_their_licences():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = {path.name for path in (FOLDER / "licences").iterdir()}
    table = re.findall(r"\[([\w.-]+)\]\(licences/([\w.-]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert {f"{name}.txt" for name, _ in table} == {file for _, file in table} == texts
    assert set(project["license"].split(" AND ")) == {name for name, _ in table}
    carried = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    traces = ROOT / "specplug" / "tools" / "replay" / "traces"
    assert carried == {ROOT / "LICENSE", traces / "README.md", *(traces / "licences" / name for name in texts)}


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


LEFT, RIGHT = [2, 3, 4, 5, 6, 7], [9, 10, 11, 12, 13, 14]
ITEMS = [item([1, 2], LEFT[1:], "a", [LEFT, RIGHT]), item([1, 9], RIGHT[1:], "b", [RIGHT])]


def held(**given):
    """Replay `ITEMS`; return the corpora that each proposer that was built could draft from."""
    built: list[list[tuple[str, list[list[int]]]]] = []

    def build(context):
        built.append(contents(context.sections["corpora"].store))
        return Planted()

    setup = Setup("planted", "fixed", 4, corpus=given.pop("corpus", True), distractors=given.pop("distractors", ()))
    replay(ITEMS, setup, registry=registry(build, needs_host=True, inline=True, sections=("corpora",)), **given)
    return built


def contents(store):
    found: dict[str, list[list[int]]] = {}
    for live in View(store, None).snapshot.tenants[""] if store else ():
        for index in range(len(live)):
            corpus = live.corpora[live.corpus_of[index]]
            found.setdefault(corpus, []).append(live.document(index).tolist())
    return [*found.items()]


def ids(*values):
    return np.array(values, np.int32)


def test_a_workloads_documents_are_one_corpus_and_equal_ones_are_in_it_once():
    assert held() == [[("documents", [LEFT, RIGHT])]]
    assert held(mode="cold") == held() * 2, "every new proposer may draft from all of it"


def test_distractors_come_behind_with_and_without_the_documents():
    others = ((ids(1, 2), ids(1, 2)), (ids(3),))
    expected = [("distractor 1", [[1, 2]]), ("distractor 2", [[3]])]
    assert held(distractors=others) == [[("documents", [LEFT, RIGHT]), *expected]]
    assert held(distractors=others, corpus=False) == [expected]
    assert held(corpus=False) == [[]]


def test_without_documents_there_is_no_corpus():
    assert corpora_of([item([1], [2], documents=[[]])], documents=True) == {}


def test_distractors_are_other_workloads_prompts_in_turn():
    first, second = [ids(1, 1, 1), ids(2)], [ids(5), ids(6), ids(7)]
    found = distractor_corpora([first, second], 2)
    assert [[text.tolist() for text in corpus] for corpus in found] == [[[1, 1, 1], [7]], [[5], [2], [6]]]
    assert distractor_corpora([first, second], 0) == ()


def test_a_distractor_is_of_bounded_size():
    prompts = [np.arange(number, number + 20_000, dtype=np.int32) for number in range(9)]
    sizes = [sum(text.size for text in corpus) for corpus in distractor_corpora([prompts], 3)]
    assert sizes == [DISTRACTOR_TOKENS] * 3


def test_too_few_prompts_for_distractors_are_an_error():
    with pytest.raises(SettingsError, match=r"prompts for 2.*at least 3"):
        distractor_corpora([[ids(1), ids(2), ids(2)]], 3)


@pytest.mark.parametrize("mode", ["serving", "cold"])
def test_retrieval_drafts_from_the_corpus(mode):
    without = replay(ITEMS, Setup("retrieval", "fixed", 4), mode=mode).counts
    found = replay(ITEMS, Setup("retrieval", "fixed", 4, corpus=True), mode=mode)
    assert found.counts.steps < without.steps
    assert not found.faults


def test_documents_are_cut_out_of_prompts():
    prompt = "Q?\n[1] The cat sat.\n[2] The cat sat. It ran.\nAnswer:"
    given = Item(
        id="a", workload="w", prompt=prompt, documents=("The cat sat.", " The cat sat. It ran.\n\n"), output="x"
    )
    assert without_documents(given).prompt == "Q?\n[1] \n[2] \nAnswer:"
    assert without_documents(given).documents == given.documents
    plain = given.model_copy(update={"documents": ()})
    assert without_documents(plain) == plain
    with pytest.raises(TraceError, match="item 'a', document 0"):
        without_documents(given.model_copy(update={"documents": ("The dog",)}))


@pytest.fixture
def traces(tmp_path):
    """A workload whose answer stands in its document only, and one to make distractors of."""
    fact = "the quick brown fox jumps over the lazy dog and runs away from the old grey wolf tonight"
    items = [
        {"id": "r", "workload": "rag", "prompt": f"Use: {fact} Say: the", "documents": [fact], "output": fact[3:]},
        {"id": "o1", "workload": "other", "prompt": "something else", "output": "entirely"},
        {"id": "o2", "workload": "other", "prompt": "and something new", "output": "again"},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in items))
    return str(path)


def test_the_command_line_hands_over_corpora(traces):
    def tau(*more):
        fixed = ("--tokenizer", "tiny", "--batch", "1", "--proposer", "retrieval", "--policy", "fixed")
        (run,) = stated("replay", traces, "--workloads", "rag", *fixed, *more)["runs"]
        return run["workloads"]["rag"]["tau"]

    cut = tau("--cut-documents")
    assert cut < tau("--cut-documents", "--corpus") == tau("--cut-documents", "--corpus", "--distractors", "2")
    assert cut < tau()
