"""Names: what may be one, and that no tenant's leads out of the store or into another's folder."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.corpus.manifest import MANIFEST_FILE
from specplug.corpus.names import MAX_NAME, check_name, folder_name, hint
from specplug.errors import CorpusError
from tests.corpus.tools import TOKENIZER, as_content, content, new_store, some_documents

NASTY = [
    *("..", ".", "/", "a/b", "../../etc", "\\", "con.", "x...", " ", "a ", "%2e", "Ä/ö", "日本語", "~", "-", "A", "a"),
    *("x" * MAX_NAME, "x" * (MAX_NAME - 1) + "y", "日" * MAX_NAME, "🙂" * MAX_NAME, "COM1", "*?", "$(rm)", "'\""),
]
REFUSED = ["", "x" * (MAX_NAME + 1), "a\0b", "\0", "a\nb", "\x7f", "\x85", "\ud800", "a\u2028b", 3, None, b"x"]


def test_nasty_names_become_different_safe_folders():
    folders = [folder_name(check_name("tenant", name)) for name in [*NASTY, ".manifest.json"]]
    assert len({folder.lower() for folder in folders}) == len(folders)  # also where case does not count
    for folder in folders:
        assert re.fullmatch(r"[tl]-[a-z0-9_%-]*", folder)
        assert len(folder) <= 255


@given(st.text(), st.text())
def test_different_names_have_different_folders(one, other):
    safe = [name for name in (one, other) if not re.search("[\ud800-\udfff]", name)]
    assert len({folder_name(name) for name in safe}) == len(set(safe))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", ["corpus", "tenant"])
def test_what_cannot_be_a_name_is_refused(tmp_path, kind, name):
    store = new_store(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    if (kind, name) != ("tenant", ""):
        with pytest.raises(CorpusError, match=f"not a name for a {kind}"):
            store.add(**{"corpus": "c", kind: name}, documents=some_documents(0))
        assert sorted(tmp_path.rglob("*")) == before


def test_tenants_and_corpora_of_nasty_names_are_kept_apart_and_inside(tmp_path):
    store = new_store(tmp_path)
    for seed, name in enumerate(NASTY):
        store.add(name, some_documents(seed), tenant=name)
    assert content(tmp_path) == {name: {name: as_content(some_documents(seed))} for seed, name in enumerate(NASTY)}
    assert {path.parent.parent for path in tmp_path.rglob(MANIFEST_FILE)} == {tmp_path / "store" / "tenants"}
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    for name in NASTY:
        store.remove(name, tenant=name)
    assert store.list() == []


def test_a_manifest_of_another_tenant_is_not_taken_for_ones_own(tmp_path):
    store = new_store(tmp_path)
    store.add("c", some_documents(0), tenant="a")
    folders = tmp_path / "store" / "tenants"
    (folders / "t-a").rename(folders / "t-b")
    with pytest.raises(CorpusError, match=r"manifest of another tenant; found 'a'"):
        store.list("b")
    assert store.list() == []
    assert TOKENIZER.name not in store.verify()[0].what


def test_hints_are_short():
    assert hint("cot", ["cat", "dog"]) == "Did you mean 'cat'? Known: cat, dog"
    many = [f"name {i}" for i in range(3000)]
    assert hint("name 12x", many).startswith("Did you mean 'name 12")
    assert "Known" not in hint("name 12x", many)
    assert len(hint("quite another", many)) < 100
