"""The demo's files, tasks and shipped weights: one format, right answers, an honest split."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specplug.tools.demo import MODEL_NAMES, model_path
from specplug.tools.demo.sources import definitions, is_held_out, source_files
from specplug.tools.demo.tasks import ANSWER, END, KINDS, MARKERS, Kind, make_tasks

CONTEXT = 1024


def changed_letter(text: str) -> str:
    """The text with one letter near its middle exchanged: a near-miss."""
    place = next(i for i in range(len(text) // 2, len(text)) if text[i].isalpha())
    return text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]


# --- files


def test_splits_are_disjoint_and_follow_the_name_alone() -> None:
    held_out = {file.name for file in source_files("held-out")}
    train = {file.name for file in source_files("train")}
    assert not held_out & train
    assert all(is_held_out(name) for name in held_out)
    assert not any(is_held_out(name) for name in train)
    assert 0.03 < len(held_out) / len(held_out | train) < 0.2
    names = [file.name for file in source_files("train")]
    assert names == sorted(names)
    assert not [n for n in names if re.search(r"(^|/)(tests?|site-packages|__pycache__)/", n)]


def test_the_split_never_moves() -> None:
    """A shipped model was trained on one side of it: these names must stay where they are."""
    names = ("argparse.py", "http/client.py", "json/decoder.py", "gzip.py", "difflib.py", "ast.py")
    assert [name for name in names if is_held_out(name)] == ["gzip.py", "difflib.py"]


def test_unreadable_and_unsuitable_files_are_skipped(tmp_path: Path) -> None:
    text = "value = 1\n" * 100
    split = "held-out" if is_held_out("good.py") else "train"
    (tmp_path / "good.py").write_text(text)
    (tmp_path / "short.py").write_text("value = 1\n")
    (tmp_path / "huge.py").write_text(text * 1000)
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n" + text.encode())
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "good.py").write_text(text)
    assert [file.name for file in source_files(split, tmp_path)] == ["good.py"]


def test_definitions_hold_documentation_as_single_lines() -> None:
    file = next(file for file in source_files("held-out") if file.name == "gzip.py")
    found = {item.name: item for item in definitions(file)}
    assert found["gzip"].kind == "module"
    assert found["GzipFile"].kind == "class"
    paragraphs = [text for item in found.values() for text in item.paragraphs]
    assert paragraphs
    assert all("\n" not in text and text.isascii() for text in paragraphs)


# --- tasks


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_deterministic_and_depend_on_the_seed(kind: Kind) -> None:
    first = make_tasks(kind, "held-out", 20, seed=3)
    assert first == make_tasks(kind, "held-out", 20, seed=3)
    assert first[:5] == make_tasks(kind, "held-out", 5, seed=3)
    assert first != make_tasks(kind, "held-out", 20, seed=4)
    assert first != make_tasks(kind, "train", 20, seed=3)


def test_tasks_are_the_same_in_another_process() -> None:
    code = (
        "from specplug.tools.demo.tasks import KINDS, make_tasks\n"
        "print([make_tasks(kind, 'held-out', 2, seed=1) for kind in KINDS])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert runs == {f"{[make_tasks(kind, 'held-out', 2, seed=1) for kind in KINDS]}\n"}


@pytest.mark.parametrize("kind", ["edit", "quote", "json"])
def test_answers_are_right_and_near_misses_are_not(kind: Kind) -> None:
    """JSON is judged by its values."""
    for task in make_tasks(kind, "held-out", 50):
        right, wrong = [task.answer, task.answer + "\n"], [changed_letter(task.answer), task.answer[:-1], ""]
        if kind == "json":
            values = json.loads(task.answer)
            right.append(json.dumps(values))
            wrong += [json.dumps({**values, "name": "something else"}), json.dumps({**values, "more": 1})]
        assert {task.is_correct(text) for text in right} == {True}
        assert {task.is_correct(text) for text in [*wrong, task.answer + " more"]} == {False}


def test_open_tasks_have_no_right_answer() -> None:
    assert {task.is_correct(task.answer) for task in make_tasks("code", "held-out", 20)} == {None}


def test_an_edit_changes_the_line_that_its_snippet_shows() -> None:
    for task in make_tasks("edit", "held-out", 50):
        document, snippet = (
            part.split("\n") for part in task.prompt.removeprefix("<|document|>").removesuffix(ANSWER).split("<|edit|>")
        )
        answer = task.answer.split("\n")
        before, changed, after = snippet
        assert document.count(before) == document.count(after) == 1
        middle = document.index(before) + 1
        assert document[middle + 1] == after
        assert document[middle] != changed
        assert answer == [*document[:middle], changed, *document[middle + 1 :]]


def test_a_quote_is_the_only_passage_with_its_opening_words() -> None:
    for task in make_tasks("quote", "held-out", 50):
        documents, first_words = task.prompt.removesuffix(ANSWER).split("<|quote|>")
        passages = [part.split(": ", 1)[1] for part in documents.split("<|document|>")[1:]]
        assert [text for text in passages if text.startswith(first_words)] == [task.answer]
        assert task.answer != first_words


def test_json_values_stand_in_the_prompt() -> None:
    for task in make_tasks("json", "held-out", 50):
        for field, value in json.loads(task.answer).items():
            assert f"{field}: {json.dumps(value)}" in task.prompt


def test_wrong_arguments_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'test'; expected 'train' or 'held-out'"):
        source_files("test")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no Python source files of the train split"):
        source_files("train", tmp_path)
    with pytest.raises(ValueError, match=r"did you mean 'tiny-draft'.*known: tiny, tiny-draft"):
        model_path("tiny-drafts")
    with pytest.raises(ValueError, match="unknown task kind 'edits'; expected one of edit, quote"):
        make_tasks("edits", "train", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_chars is 10; expected at least 200"):
        make_tasks("edit", "train", 1, max_chars=10)


# --- shipped models


@pytest.mark.parametrize(("name", "limit"), list(zip(MODEL_NAMES, (8e6, 1e6, 1e6), strict=True)))
def test_shipped_folders_are_complete_and_small(name: str, limit: float) -> None:
    folder = model_path(name)
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} <= files
    assert {"tokenizer.json", "tokenizer_config.json"} <= files
    assert (folder / "model.safetensors").stat().st_size <= limit
    card = (folder / "README.md").read_text()
    for needed in ("PSF-2.0", "held-out", "edit", "quote", "json"):
        assert needed in card
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert config["max_position_embeddings"] == 2048
    assert "auto_map" not in config
    own, target = (json.loads((model_path(it) / "tokenizer.json").read_text())["model"] for it in (name, "tiny"))
    assert (own == target) is (name != "tiny-draft-other")


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_survive_the_shipped_tokenizers(name: str, kind: Kind) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path(name))
    for task in make_tasks(kind, "held-out", 100):
        assert END not in task.prompt
        assert not any(marker in task.answer for marker in MARKERS)
        prompt, answer = tokenizer(task.prompt).input_ids, tokenizer(task.answer).input_ids
        assert tokenizer.decode(prompt) == task.prompt
        assert tokenizer.decode(answer, skip_special_tokens=True) == task.answer
        if name != "tiny-draft-other":
            assert len(prompt) + len(answer) < CONTEXT
        if kind != "code":
            assert tokenizer(task.prompt + task.answer).input_ids == prompt + answer
    assert all(len(tokenizer(marker).input_ids) == 1 for marker in MARKERS)
    assert tokenizer.eos_token == END
    generation = json.loads((model_path(name) / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id
