"""`specplug corpus`: building a store, changing it and looking into it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.text.fingerprint import Fingerprint
from specplug.tools.cli import corpus_intake
from specplug.tools.demo import model_path
from specplug_retrieval.proposer import SHARED
from tests.corpus.tools import overwrite
from tests.tools.cli import tools

invoke, done = partial(tools.invoke, "corpus"), partial(tools.stated, "corpus")
TEXT = "The cat sat on the mat. The cat sat on the hat.\n"


def refused(*arguments: object, **more) -> str:
    return invoke(*arguments, code=2, **more).output


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text(TEXT)
    (folder / "sub" / "b.md").write_text("A dog " * 50)
    (folder / "c.txt").write_text("text")
    (folder / "image.png").write_bytes(b"\x89PNG\0")
    return folder


@pytest.fixture
def store(tmp_path: Path, docs: Path) -> Path:
    root = tmp_path / "store"
    done("build", root, docs, "--tokenizer", "tiny", "--glob", "*.md")
    return root


def corpora(store: Path) -> list[tuple[str, str, int]]:
    return [(one["tenant"], one["name"], one["documents"]) for one in done("list", store)["corpora"]]


def test_build_adds_a_folder_and_says_what_it_did(tmp_path, docs):
    shown = invoke("build", tmp_path / "other", docs, "--tokenizer", "tiny").stdout
    assert all(part in shown for part in ("docs", "bytes per token", "tokens per second", "Left out: 1 binary."))
    found = done("build", tmp_path / "store", docs, "--tokenizer", "tiny")
    (corpus,) = found["corpora"]
    assert (corpus["name"], corpus["documents"], found["skipped"]) == ("docs", 3, {"binary": 1})
    assert corpus["tokens"] == sum(len(Store(tmp_path / "store").document(n)) for n in ("a.md", "sub/b.md", "c.txt"))
    assert corpus["bytes_per_token"] == corpus["bytes"] / corpus["tokens"]
    assert found["tokens_per_second"] > 0
    assert done("verify", tmp_path / "store") == {"ok": True, "problems": []}


def test_the_time_of_a_build_is_without_start_up(tmp_path, docs, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(corpus_intake, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(corpus_intake, "load_sorting", lambda: now.append(now.pop() + 1000.0))
    assert done("build", tmp_path / "store", docs, "--tokenizer", "tiny")["seconds"] == 0.0


def test_each_source_is_a_corpus_or_all_are_one(tmp_path, docs):
    other = tmp_path / "other.txt"
    other.write_text("other text")
    done("build", tmp_path / "store", docs, other, "--tokenizer", "tiny")
    done("add", tmp_path / "store", docs, other, "--name", "all", "--tenant", "acme")
    assert corpora(tmp_path / "store") == [("", "docs", 3), ("", "other", 1), ("acme", "all", 4)]


def test_lines_come_from_standard_input(store):
    lines = '{"id": "one", "body": "The cat"}\n{"id": "two", "token_ids": [1, 2, 3]}\n'
    done("add", store, "-", "--name", "chunks", "--text-field", "body", input=lines)
    assert corpora(store)[1] == ("", "chunks", 2)
    assert Store(store).document("two").tolist() == [1, 2, 3]
    assert "Name the corpus with --name" in refused("add", store, "-", input=lines)


def test_bad_input_is_reported_or_skipped_and_nothing_is_added_by_halves(store, tmp_path):
    path = tmp_path / "chunks.jsonl"
    path.write_text('{"text": "good"}\n{"token_ids": [2048]}\n{"text": 1}\n')
    message = refused("add", store, path)
    assert "chunks.jsonl, line 2: not a token of this tokenizer; found 2048; expected ids in [0, 2048)" in message
    assert corpora(store) == [("", "docs", 2)]
    found = done("add", store, path, "--skip-bad")
    assert found["skipped"] == {"bad": 2}
    assert [message.split(": ")[0][-6:] for message in found["first_bad"]] == ["line 2", "line 3"]


def test_a_corpus_is_extended_if_asked_and_nothing_is_doubled(store, docs):
    assert "by `specplug corpus sync`" in refused("add", store, docs)
    (found,) = done("add", store, docs, "--extend")["corpora"]
    assert (found["documents"], found["present"]) == (1, 2)
    (docs / "a.md").write_text("other")
    result = invoke("add", store, docs, "--extend")
    assert "docs had 2 of the documents already: they were not added again." in result.stdout
    assert "docs has 1 documents beside others of the same name and another text" in result.stdout
    assert corpora(store) == [("", "docs", 4)]


def test_sync_lets_a_corpus_have_what_its_folder_has(store, docs):
    assert done("sync", store, docs, "--glob", "*.md")["corpora"][0]["unchanged"] == 2
    (docs / "a.md").write_text("changed")
    (docs / "sub" / "b.md").unlink()
    (docs / "new.md").write_text("new")
    (found,) = done("sync", store, docs, "--glob", "*.md")["corpora"]
    assert [found[key] for key in ("added", "replaced", "removed", "unchanged", "documents")] == [1, 1, 1, 0, 2]
    shown = done("inspect", store, "docs")["documents"]
    assert {one["name"] for one in shown} == {"a.md", "new.md"}
    assert done("inspect", store, "--document", "a.md")["document"]["first_text"] == "changed"
    result = invoke("sync", store, docs, "--glob", "*.md")
    assert "unchanged" in result.stdout
    assert "Remove" not in result.stdout


def test_sync_makes_a_store_where_a_tokenizer_is_named(tmp_path, docs):
    assert "no corpus store" in refused("sync", tmp_path / "store", docs)
    done("sync", tmp_path / "store", docs, "--tokenizer", "tiny", "--tenant", "acme")
    done("sync", tmp_path / "store", docs, "--tokenizer", "tiny", "--tenant", "acme")
    assert corpora(tmp_path / "store") == [("acme", "docs", 3)]


@pytest.mark.parametrize("command", ["build", "add", "sync"])
def test_all_that_cannot_be_read_is_listed_before_anything_is_made(tmp_path, docs, command):
    """Unreadable items of the last source are listed too, and no earlier corpus is built."""
    other, lines, root = tmp_path / "other", tmp_path / "lines.jsonl", tmp_path / "store"
    other.mkdir()
    (other / "good.txt").write_text("good")
    for number in range(5):
        (other / f"{number}.txt").write_bytes(b"caf\xe9")
    lines.write_text('{"text": 1}\n{"text": "good"}\n[]\n')
    if command != "build":
        done("build", root, docs, "--tokenizer", "tiny", "--name", "before")
    tokenizer = [] if command == "add" else ["--tokenizer", "tiny"]
    message = refused(command, root, docs, other, lines, *tokenizer)
    for bad in [*(f"other/{number}.txt: not UTF-8 text" for number in range(5)), "line 1: no text", "line 3: no JSON"]:
        assert bad in message
    assert "7 of the sources' documents cannot be read" in message
    assert "skip them with --skip-bad" in message
    assert (corpora(root) if root.exists() else None) == (None if command == "build" else [("", "before", 3)])
    assert done(command, root, docs, other, lines, *tokenizer, "--skip-bad")["skipped"]["bad"] == 7


def test_the_readmes_store_serves_requests_that_name_no_tenant(tmp_path, monkeypatch):
    """The page's commands run unchanged, except for the model."""
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    commands = [line.split("#")[0].split()[2:] for line in readme.splitlines() if line.startswith("specplug corpus ")]
    assert [command[0] for command in commands] == ["build", "sync"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "leave.md").write_text(TEXT)
    for command in commands:
        done(*(str(model_path()) if word == "MODEL" else word for word in command))
    assert corpora(Path("store")) == [(SHARED, "handbook", 1)]


def test_mistakes_are_reported_before_anything_is_made(tmp_path, docs):
    root = tmp_path / "store"
    for missing in (tmp_path / "missing", tmp_path / ("long" * 100)):
        assert "no such source" in refused("build", root, docs, missing, "--tokenizer", "tiny")
    limited = ("build", tmp_path / "other", docs, "--tokenizer", "tiny", "--max-tokens", "100")
    assert "too much text for one tenant" in refused(*limited)
    assert "two sources are called 'docs'" in refused("build", root, docs, docs, "--tokenizer", "tiny")
    assert "no such tokenizer" in refused("build", root, docs, "--tokenizer", "tinny")
    assert "no corpus store" in refused("add", root, docs)
    assert not root.exists()


def test_a_tokenizer_that_moved_can_be_named(tmp_path, docs):
    moved = shutil.copy(model_path() / "tokenizer.json", tmp_path / "tokenizer.json")
    done("build", tmp_path / "store", docs, "--tokenizer", moved)
    Path(moved).unlink()
    message = refused("add", tmp_path / "store", docs, "--name", "more")
    assert "the store's tokenizer: no such tokenizer" in message
    assert "--tokenizer" in message
    done("add", tmp_path / "store", docs, "--name", "more", "--tokenizer", "tiny")


def test_remove_takes_a_corpus_or_documents_of_it(store, docs):
    done("add", store, docs, "--name", "more")
    found = done("remove", store, "more", "--document", "a.md", "--document", "c.txt")
    assert found["documents"] == 2
    assert corpora(store) == [("", "docs", 2), ("", "more", 1)]
    done("remove", store, "docs")
    assert corpora(store) == [("", "more", 1)]


def test_inspect_shows_segments_and_documents(store):
    found = done("inspect", store, "docs", "--limit", "1")
    (segment,) = found["segments"]
    assert (segment["documents"], segment["corpora"]) == (2, ["docs"])
    assert segment["bytes_per_token"] == segment["bytes"] / segment["tokens"]
    assert [one["name"] for one in found["documents"]] == ["a.md"]
    done("remove", store, "docs", "--document", "a.md")
    found = done("inspect", store, "docs")
    assert [one["name"] for one in found["documents"]] == ["sub/b.md"]
    assert "documents" not in done("inspect", store)
    assert "Did you mean 'docs'?" in refused("inspect", store, "doc")
    assert done("inspect", store, "--tenant", "nobody") == {"segments": []}
    shown = done("inspect", store, "docs", "--document", "sub/b.md")["document"]
    assert shown["first_text"].startswith("A dog A dog")
    assert shown["tokens"] >= len(shown["first_token_ids"])


def test_a_store_whose_tokenizer_is_gone(tmp_path):
    Store.create(tmp_path / "store", Fingerprint("/gone", "0" * 32, 2048))
    lines = tmp_path / "c.jsonl"
    lines.write_text('{"id": "d", "token_ids": [7, 8]}')
    assert "no such tokenizer" in refused("add", tmp_path / "store", lines)
    assert "of another tokenizer" in refused("add", tmp_path / "store", lines, "--tokenizer", "tiny")
    store = Store(tmp_path / "store")
    store.add("c", [Document("d", np.array([7, 8], np.int32))])
    found = done("inspect", store.root, "--document", "d")["document"]
    assert (found["first_token_ids"], found["first_text"]) == ([7, 8], None)
    assert "7 8" in invoke("inspect", store.root, "--document", "d").stdout


def test_inspect_counts_what_follows(store, docs):
    text = " cat sat on the"
    found = done("inspect", store, "--continues", text)["continues"]
    assert found["matched_text"] == text
    assert {one["text"]: one["count"] for one in found["next"]} == {" m": 1, " h": 1}
    done("add", store, docs, "--name", "more", "--glob", "a.md")
    assert done("inspect", store, "--continues", text)["continues"]["occurrences"] == 4
    assert done("inspect", store, "more", "--continues", text)["continues"]["occurrences"] == 2
    assert done("inspect", store, "--tenant", "x", "--continues", text)["continues"]["matched_tokens"] == 0


def test_verify_tells_of_a_torn_file_and_ends_with_1(store):
    (segment,) = store.glob("tenants/*/*.safetensors")
    data = bytearray(segment.read_bytes())
    data[-200] ^= 1
    overwrite(segment, data)
    result = invoke("verify", store, "--json")
    assert result.exit_code == 1
    assert [problem["path"] for problem in json.loads(result.stdout)["problems"]] == [str(segment)]
    assert invoke("verify", store).exit_code == 1


@pytest.mark.parametrize(
    ("command", "given", "words"),
    [
        ("list", (), ["│ docs", "172"]),
        ("inspect", (), ["segment", "172", "docs"]),
        ("inspect", ("docs",), ["segment", "Documents of docs", "a.md", "sub/b.md"]),
        ("inspect", ("--document", "a.md"), ["a.md: 21 tokens", TEXT]),
        ("inspect", ("--continues", "The cat"), ["What follows 'The cat'", "' s'", "the last 3 of 3"]),
        ("verify", (), ["is intact: 172 tokens"]),
        ("remove", ("docs",), ["Removed from docs: documents 2, tokens 172."]),
    ],
)
def test_people_are_reported_the_same(store, command, given, words):
    shown = invoke(command, store, *given, code=0).stdout
    assert [word for word in words if word not in shown] == []


def test_names_cannot_command_the_terminal(store, tmp_path):
    lines = tmp_path / "c.jsonl"
    lines.write_text(json.dumps({"id": "\u202e[red]x", "text": "\x1b[31mred"}))
    done("add", store, lines)
    shown = invoke("inspect", store, "c").stdout + invoke("inspect", store, "--document", "\u202e[red]x").stdout
    assert "\\u202e[red]x" in shown
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown
