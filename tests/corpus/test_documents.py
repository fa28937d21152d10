"""Sources become documents: what is read, what is left out, and how texts begin after other texts."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.corpus.documents import Content, Document, documents_from, tokenized, tokenized_many
from specplug.corpus.inspecting import continuations
from specplug.corpus.sources import STDIN, Reading, Skipped, read
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.errors import CorpusError
from specplug.text.retokenized import IN_STEP, LEADS, MAX_TOKENS, PIECE
from specplug.text.tokenizers import load_tokenizer
from tests.tools.cli.tools import invoke

WORDS = [
    "The",
    "the",
    " cat",
    "cat",
    "Dog",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "def f(x):",
    "é",
    "天地",
    "1984",
    "-" * 9,
    '"',
    ".",
]


@cache
def tiny():
    return load_tokenizer("tiny")


def tokens(text: str) -> list[int]:
    return list(tiny().encode_many([text])[0])


def listed(source, skipped: Skipped | None = None, **reading) -> list[Content]:
    return list(read(str(source), Reading(**reading), skipped or Skipped()))


def names(source, skipped: Skipped | None = None, **reading) -> list[str]:
    return [content.name for content in listed(source, skipped, **reading)]


def write(root: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def lines(path: Path, *items) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


# Re-tokenized prefixes


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=90).map("".join))
def test_prefixes_are_beginnings_of_the_text_behind_a_space_or_a_new_line(text: str):
    document = tokenized("d", text, tokens)
    assert document.token_ids.tolist() == tokens(text)
    for prefix in document.prefixes:
        stated = tiny().decode(prefix).rstrip("\ufffd")  # it may end within a character
        assert any((lead + text).startswith(stated) for lead in LEADS)
        assert 0 < len(prefix) <= MAX_TOKENS


def test_an_opening_ends_some_tokens_after_it_is_in_step():
    text = "The cat sat on the mat and looked at the big dog, which did not look back at the cat."
    (prefix,) = tokenized("d", text, tokens).prefixes
    own = tokens(text)
    assert prefix[0] != own[0]
    assert prefix[1:].tolist() == own[1 : 1 + IN_STEP]  # " The" is one token, as "The" is


def test_what_is_in_step_from_the_first_token_has_no_prefix():
    """After a new line "The" is the same token, so the text has no re-tokenized prefix for that case."""
    text = "The cat"
    assert tokens("\n" + text)[-2:] == tokens(text)[-2:]
    assert len(tokenized("d", text, tokens).prefixes) == 1


def test_a_tokenizer_of_bytes_has_no_prefixes():
    assert tokenized("d", "The cat", lambda text: list(text.encode())).prefixes == ()


def test_texts_that_are_never_in_step_have_short_prefixes():
    def shifting(text: str) -> list[int]:
        return [hash((len(text), at)) % 1000 for at in range(len(text))]

    document = tokenized("d", "word " * 100, shifting)
    assert all(len(prefix) <= MAX_TOKENS for prefix in document.prefixes)


def test_a_long_text_is_tokenised_in_pieces_and_its_prefixes_from_its_beginning():
    requested: list[str] = []

    def tokenize(text: str) -> list[int]:
        requested.append(text)
        return tokens(text)

    text = "One line of many, which is long.\n" * 5000
    document = tokenized("d", text, tokenize)
    assert max(map(len, requested)) <= PIECE
    assert sum(map(len, requested)) < len(text) + 1000
    assert tiny().decode(document.token_ids) == text


def test_many_documents_are_tokenised_at_once_as_one_by_one():
    texts = [("a", "The cat"), ("b", ""), ("c", "  x\n" * 40), ("d", "Ende")]
    calls: list[int] = []

    def many(found: list[str]) -> list[list[int]]:
        calls.append(len(found))
        return [tokens(text) for text in found]

    together = tokenized_many(texts, many)
    assert len(calls) == 1
    for found, (name, text) in zip(together, texts, strict=True):
        alone = tokenized(name, text, tokens)
        assert found.name == alone.name == name
        assert found.token_ids.tolist() == alone.token_ids.tolist()
        assert [each.tolist() for each in found.prefixes] == [each.tolist() for each in alone.prefixes]


def test_line_ends_and_spaces_are_those_that_models_write():
    tokenize = tiny().encode
    assert tokenized("a", "The\u00a0cat\r\nsat.\r\n", tokenize).token_ids.tolist() == list(tokenize("The cat\nsat.\n"))


def test_documents_are_not_all_held():
    """Some thousand are read before the first one comes out, however many there are."""
    read_so_far = 0

    def contents():
        nonlocal read_so_far
        while True:
            read_so_far += 1
            yield Content(str(read_so_far), "The cat")

    assert next(documents_from(contents(), tiny().encode_many)).name == "1"
    assert read_so_far < 10_000


def test_texts_and_token_ids_keep_their_order():
    contents = [Content("a", "The"), Content("b", None, np.array([1, 2], np.int32)), Content("c", "cat")]
    found = list(documents_from(contents, tiny().encode_many))
    assert [document.name for document in found] == ["a", "b", "c"]
    assert found[1].token_ids.tolist() == [1, 2]


# Folders and files


def test_a_text_file_is_a_document(tmp_path):
    write(tmp_path, a_txt="\ufeffThe cat\r\n")
    assert listed(tmp_path / "a.txt") == [("a.txt", "The cat\r\n", Content("", None).token_ids)]


FOLDER = {"b_md": "x", "a_md": "x", "sub__c_md": "x", "sub__deep__d_py": "x"}
LEFT_OUT = {"a_md": "x", "_hidden": "x", "_git__config": "x", "sub___x": "x", "b_bin": b"ab\0c", "c_md": ""}
BAD = {"a_md": "x", "b_md": b"abc\xe9\n"}


@pytest.mark.parametrize(
    ("files", "reading", "expected", "counts"),
    [
        (FOLDER, {}, ["a.md", "b.md", "sub/c.md", "sub/deep/d.py"], {}),
        (FOLDER, {"globs": ("*.md",)}, ["a.md", "b.md", "sub/c.md"], {}),
        (FOLDER, {"globs": ("sub/*",)}, ["sub/c.md", "sub/deep/d.py"], {}),
        (FOLDER, {"globs": ("d.py", "b.*")}, ["b.md", "sub/deep/d.py"], {}),
        (FOLDER, {"globs": ("x",)}, [], {}),
        (LEFT_OUT, {}, ["a.md"], {"hidden": 3, "binary": 1, "special": 1, "empty": 1}),
        (BAD, {"skip_bad": True}, ["a.md"], {"bad": 1}),
    ],
)
def test_files_of_a_folder_are_read_or_left_out_and_counted(tmp_path, files, reading, expected, counts):
    write(tmp_path, **files)
    if counts.get("special"):
        os.mkfifo(tmp_path / "pipe")
    skipped = Skipped()
    assert names(tmp_path, skipped, **reading) == expected
    assert skipped.counts() == counts
    assert ["offset 3" in it for it in skipped.first_bad] == [True] * counts.get("bad", 0)


@pytest.mark.parametrize(
    ("content", "encoding", "place"),
    [(b"abc\xe9\n", "UTF-8", "byte 0xe9 at offset 3"), ("abc".encode("utf-16")[:-1], "UTF-16", "byte 0x.. at offset")],
)
@pytest.mark.parametrize("name", ["a.md", "b.jsonl"])
def test_what_is_not_text_is_refused_with_its_place(tmp_path, content, encoding, place, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=rf"{name}(, line 1)?: not {encoding} text; found {place}"):
        names(tmp_path)


def test_links_that_leave_the_folder_are_not_followed(tmp_path):
    secret = write(tmp_path / "other", secret_md="secret")
    root = write(tmp_path / "root", a_md="x")
    (root / "out.md").symlink_to(secret / "secret.md")
    (root / "relative.md").symlink_to("../other/secret.md")
    (root / "folder").symlink_to(secret)
    (root / "loop").symlink_to(root)
    (root / "nowhere.md").symlink_to("missing")
    (root / "inside.md").symlink_to("a.md")
    skipped = Skipped()
    assert names(root, skipped) == ["a.md", "inside.md"]
    assert skipped.counts() == {"linked": 5}


def test_hostile_names_are_escaped(tmp_path):
    for name in (b"a\nb.md", b"\x1b[31m.md", b"\xff.md", b"a\\..\\b.md"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("x")
    assert sorted(names(tmp_path)) == [r"\x1b[31m.md", r"\xff.md", r"a\..\b.md", r"a\nb.md"]


def test_a_name_that_is_too_long_is_refused(tmp_path):
    deep = tmp_path / "/".join(["x" * 200] * 6)
    write(deep, a_md="x")
    with pytest.raises(CorpusError, match="not a name for a document"):
        names(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_encodings_are_read_by_their_byte_order_mark(tmp_path, encoding):
    mark = "\ufeff" if encoding.endswith("be") else ""
    write(tmp_path, a_txt=f"{mark}caf\u00e9\r\nx".encode(encoding))
    write(tmp_path, b_jsonl=f'{mark}{{"id": 1, "text": "caf\u00e9"}}\n{{"id": 2, "text": "y"}}\n'.encode(encoding))
    assert [one[:2] for one in listed(tmp_path)] == [("a.txt", "caf\u00e9\r\nx"), ("1", "caf\u00e9"), ("2", "y")]


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(CorpusError, match="cannot read a source; found No such file"):
        names(tmp_path / "missing", skip_bad=True)


# JSON lines


@pytest.mark.parametrize(
    ("item", "reading", "expected"),
    [
        ({"name": "a", "text": "x"}, {}, ("a", "x", [])),
        ({"id": 7, "token_ids": [1, 2]}, {}, ("7", None, [1, 2])),
        ({"text": "y"}, {}, ("c.jsonl:1", "y", [])),
        ({"id": "i", "name": "n", "text": "z"}, {}, ("n", "z", [])),
        (
            {"body": "x", "url": "u", "text": "no", "name": "no"},
            {"text_field": "body", "name_field": "url"},
            ("u", "x", []),
        ),
    ],
)
def test_lines_have_texts_or_token_ids_and_names(tmp_path, item, reading, expected):
    (found,) = listed(lines(tmp_path / "c.jsonl", item), **reading)
    assert (found.name, found.text, found.token_ids.tolist()) == expected


def test_lines_come_from_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'\n{"text": "x"}\n')))
    assert names(STDIN) == ["stdin:2"]


def test_ids_that_restart_in_another_file_are_refused(tmp_path):
    """Documents are removed by their names: one removal would take both."""
    lines(tmp_path / "a.jsonl", {"id": 1, "text": "x"}, {"id": 1, "text": "y"})  # of one file, as chunks of a text
    lines(tmp_path / "b.jsonl", {"id": 2, "text": "z"}, {"id": 1, "text": "z"})
    expected = rf"b\.jsonl, line 2: an id that another file has, too; found '1', which is in {tmp_path}/a\.jsonl"
    with pytest.raises(CorpusError, match=expected):
        names(tmp_path)
    assert names(tmp_path, name_field="id") == ["1", "1", "2", "1"]
    invoke("corpus", "build", tmp_path / "store", tmp_path, "--tokenizer", "tiny", "--name-field", "id", code=0)
    refused = invoke("corpus", "sync", tmp_path / "store", *tmp_path.glob("*.jsonl"), "--name", "chunks", code=2)
    assert "an id that another file has, too" in refused.stderr


def test_lines_in_a_folder_are_read_as_such(tmp_path):
    write(tmp_path, a_md="x")
    lines(tmp_path / "b.JSONL", {"id": "one", "text": "y"}, {"text": "z"})
    assert names(tmp_path) == ["a.md", "one", "b.JSONL:2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object; found list"),
        (b"{}", "no text; found only nothing; expected a string 'text', or a list 'token_ids'"),
        (b'{"body": "x"}', "no text; found only 'body'"),
        (b'{"text": 3}', "no text; found int"),
        (b'{"text": "\xe9"}', "not UTF-8 text; found byte 0xe9 at offset 10"),
        (b'{"text": "\\ud800"}', "no valid Unicode; found half a surrogate at 0"),
        (b'{"text": "x", "name": [1]}', r"no name; found 'id': \[1\]"),
        (b'{"text": "x", "name": "a\\nb"}', "not a name for a document"),
        (b'{"token_ids": [1, -1]}', "not a token of this tokenizer; found -1"),
        (
            b'{"token_ids": [1, 64]}',
            r"not a token of this tokenizer; found 64; expected ids in \[0, 64\)",
        ),
        (b'{"token_ids": [1.5]}', "wrong token ids"),
        (b'{"token_ids": [true]}', "wrong token ids"),
        (b'{"token_ids": [[1], [2]]}', "wrong token ids"),
        (b'{"token_ids": [99999999999999999999999]}', "not a token of this tokenizer; found 9999"),
        (b'{"token_ids": "abc"}', "wrong token ids; found 'abc'"),
    ],
)
def test_a_bad_line_is_reported_with_its_number_or_skipped(tmp_path, line: bytes, message: str):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n')
    with pytest.raises(CorpusError, match=rf"c\.jsonl, line 2: {message}"):
        names(path, vocab_size=64)
    skipped = Skipped()
    assert names(path, skipped, vocab_size=64, skip_bad=True) == ["c.jsonl:1", "c.jsonl:3"]
    assert skipped.counts() == {"bad": 1}


# Counts


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), max_size=6),
    st.integers(0, 5),
)
def test_counts_of_what_follows_are_exact(tmp_path_factory, bodies: list, context: list, gone: int):
    store = Store.create(tmp_path_factory.mktemp("counts") / "store", tiny().fingerprint)
    for half in (0, 1):
        part = [Document(str(at), np.array(body, np.int32)) for at, body in enumerate(bodies) if at % 2 == half]
        if part:
            store.add(f"corpus {half}", part)
    if gone < len(bodies):
        store.remove(f"corpus {gone % 2}", documents=[str(gone)])
        bodies = [body for at, body in enumerate(bodies) if at != gone]
    found = continuations(View(store.root, None).snapshot.tenants.get("", ()), context)
    expected: Counter[int] = Counter()
    for length in range(len(context), 0, -1):
        end = context[-length:]
        expected = Counter(
            b[at + length] for b in bodies for at in range(len(b) - length) if b[at : at + length] == end
        )
        if expected:
            break
    assert found.counts == expected
    assert found.length == (length if expected else 0)


def test_prefixes_count_only_where_no_document_says_as_much(tmp_path):
    store = Store.create(tmp_path / "store", tiny().fingerprint)
    store.add("c", [Document("d", np.array([5, 6, 7], np.int32), (np.array([9, 6, 7], np.int32),))])
    (live,) = View(store.root, None).snapshot.tenants[""]
    assert continuations([live], [6]) == (1, Counter({7: 1}))
    assert continuations([live], [9]) == (1, Counter({6: 1}))
    assert continuations([live], [8, 9, 6]) == (2, Counter({7: 1}))
