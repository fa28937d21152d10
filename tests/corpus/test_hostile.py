"""Files of one tenant with right checksums and hostile values: a clear problem there, and the others serve."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.corpus.manifest import MANIFEST_FILE, MANIFEST_FORMAT
from specplug.corpus.sealed import sealed
from specplug.corpus.segment import SECTIONS, SEGMENT_FORMAT, Segment, write_segment
from specplug.corpus.store import STORE_FORMAT, Store
from specplug.corpus.tenant import Tenant
from specplug.corpus.view import View
from specplug.errors import CorpusError
from specplug.lookup.corpora import Segment as Searched
from specplug.operator.corpus_admin import CorpusAdmin
from specplug.settings import CorporaSettings
from tests.corpus.tools import TOKENIZER, new_store, some_documents

_HEAD = ("checksum", "format", "version")
HOSTILE: list[Any] = [
    None, True, -1, 0, 0.5, math.nan, math.inf, 2**31, 10**400, "x", "9" * 5000, "\ud800",
    [], {}, [None], [[["c"]]], [{"x": [0]}],
]  # fmt: skip


def store_of_two(root: Path) -> tuple[Store, Path]:
    """Return a store and the folder of its tenant "bad", which has two segments."""
    store = new_store(root, segment_tokens=80)  # so that the segments stay apart
    store.add("c", some_documents(1), tenant="good")
    store.add("c", some_documents(2), tenant="bad")
    store.add("d", some_documents(3), tenant="bad")
    return store, root / "store" / "tenants" / "t-bad"


def serves(store: Store) -> bool:
    """See that the tenant "good" serves, whatever is asked; return whether "bad" has no problem at all."""
    seen = View(store.root, TOKENIZER).snapshot
    assert len(seen.tenants["good"]) == 1
    for it in (segment for segments in seen.tenants.values() for segment in segments):  # as a proposer takes them
        Searched(it.text, it.places, it.starts, it.corpus_of, it.corpora).check()
    problems = store.verify()
    assert all("t-bad" in problem.path for problem in problems)
    assert ("good", "c") in {(info.tenant, info.name) for info in store.list()}
    reported = asyncio.run(CorpusAdmin(CorporaSettings(store=str(store.root)), None).list_corpora())
    assert "good" in reported["tenants"]
    assert tuple(reported["problems"]) == seen.problems
    return not (problems or seen.problems)


def rest_is_intact(store: Store) -> bool:
    """Do as `serves`; then ask all that can be asked of "bad", which is answered or refused."""
    whole = serves(store)
    for ask in (
        lambda: store.list("bad"),
        lambda: store.document("d0", corpus="c", tenant="bad"),
        lambda: store.remove("c", documents=["d0"], tenant="bad"),
        lambda: store.add("new", some_documents(4), tenant="bad"),
        lambda: store.remove("c", tenant="bad"),
    ):
        try:
            ask()
        except CorpusError as error:
            assert len(str(error)) < 2000  # noqa: PT017 - it need not be raised
    assert "good" in View(store.root, TOKENIZER).snapshot.tenants
    return whole


def manifest_fields(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in JSON, whole lists and objects included."""
    below = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(each for key, value in below for each in manifest_fields(value, (*path, key)))]


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = with_value(content[path[0]], path[1:], value)
    return copy


def changed(path: Path, where: tuple[Any, ...], value: Any) -> bytes:
    """Return a manifest with another value and a right checksum."""
    content = {key: it for key, it in json.loads(path.read_bytes()).items() if key not in _HEAD}
    return sealed(lambda head: {**head, **with_value(content, where, value)}, MANIFEST_FORMAT)


def test_a_hostile_manifest_costs_its_tenant_only(tmp_path):
    """Each field in turn gets each value."""
    kept, folder = store_of_two(tmp_path)
    manifest = folder / MANIFEST_FILE
    content = json.loads(manifest.read_bytes())
    fields = [path for path in manifest_fields(content) if path and path[0] not in _HEAD]
    assert len(fields) > 20
    allowed = [("segments", []), ("generation", 2**31)]
    root = tmp_path / "copy"
    hostile = root / "tenants" / "t-bad" / MANIFEST_FILE
    for path, value in ((path, value) for path in fields for value in HOSTILE):
        if not root.exists():
            shutil.copytree(kept.root, root)
        data = changed(manifest, path, value)
        hostile.write_bytes(data)
        whole = rest_is_intact(Store(root))
        assert whole is ((path[-1], value) in allowed), (path, value)
        if hostile.read_bytes() != data:  # some change was possible
            shutil.rmtree(root)


def hostile_arrays(array: np.ndarray) -> list[np.ndarray]:
    """Return arrays of the same shape and type that no writer makes."""
    least, most = (np.array(it, array.dtype) for it in (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max))
    found = [np.full_like(array, least), np.full_like(array, most), np.zeros_like(array), array[::-1].copy()]
    for value in (least, most, np.array(10**6, np.int64).astype(array.dtype)):
        for at in (0, array.size // 2, array.size - 1):
            found.append(array.copy())
            found[-1][at] = value
    return [each for each in found if not np.array_equal(each, array)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_hostile_segment_costs_itself_only(tmp_path, section):
    """The same holds for a removal, which reads the documents."""
    kept, folder = store_of_two(tmp_path)
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    file = manifest["segments"][0]["file"]
    segment = Segment(folder / file, TOKENIZER)
    arrays = {name: np.array(getattr(segment, name)) for name in SECTIONS}
    for number, array in enumerate(hostile_arrays(arrays[section])):
        root = tmp_path / str(number)
        shutil.copytree(kept.root, root)
        path = root / "tenants" / "t-bad" / file
        path.unlink()
        size = write_segment(path, {**arrays, section: array}, segment.corpora, TOKENIZER)
        if size != segment.size:  # else the manifest tells
            continue
        store = Store(root)
        assert len(View(root, TOKENIZER).snapshot.tenants["bad"]) >= 1  # the other segment
        assert not rest_is_intact(store)
        shutil.rmtree(root)


def reheaded(path: Path, change: Callable[[dict[str, Any]], Any], align: int = 64) -> None:
    """Write a segment's header anew, with a right checksum."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    content = json.loads(data[8:end])
    metadata = {key: value for key, value in content.pop("__metadata__").items() if key not in _HEAD}
    head = sealed(
        lambda head: change({"__metadata__": {**head, **metadata}, **content}), SEGMENT_FORMAT, align=align, after=8
    )
    path.unlink()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[end:])


def test_a_hostile_header_is_refused(tmp_path):
    _, folder = store_of_two(tmp_path)
    file = next(folder.glob("*.safetensors"))
    whole = file.read_bytes()
    content = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    fields = [path for path in manifest_fields(content) if path and path[-1] not in ("__metadata__", *_HEAD)]
    for path in fields:
        for value in [*HOSTILE, "[" * 100_000, '["c","c"]', '{"c":1}', "[1]"]:
            other = with_value(content, path, value)
            free = path[-1] == "tokenizer_name" or str(path[-1]).startswith("checksum")  # a text is all they need to be
            if repr(other) == repr(content) or (free and isinstance(value, str)):
                continue
            reheaded(file, lambda content, path=path, value=value: with_value(content, path, value))
            with pytest.raises(CorpusError):
                Segment(file, TOKENIZER)
            file.write_bytes(whole)
    reheaded(file, lambda content: content, align=64)
    Segment(file, TOKENIZER)
    size = int.from_bytes(file.read_bytes()[:8], "little")
    reheaded(file, lambda content: content, align=size + 9)
    with pytest.raises(CorpusError, match=f"arrays that begin at byte {size + 9}"):
        Segment(file, TOKENIZER)


def test_a_hostile_store_file_is_refused(tmp_path):
    store = new_store(tmp_path)
    path = store.root / "store.json"
    about = TOKENIZER._asdict()
    for key in about:
        for value in HOSTILE:
            if (key == "vocab_size" and type(value) is int and 0 <= value < 2**31) or (
                key != "vocab_size" and isinstance(value, str)
            ):
                continue
            path.write_bytes(sealed(lambda head, a={**about, key: value}: {**head, "tokenizer": a}, STORE_FORMAT))  # type: ignore[misc]
            with pytest.raises(CorpusError, match=r"store\.json: a torn or foreign file"):
                Store(store.root)
    path.write_bytes(sealed(lambda head: {**head, "version": math.inf, "tokenizer": about}, STORE_FORMAT))
    with pytest.raises(CorpusError, match=r"store\.json: a torn or foreign file"):
        Store(store.root)


def test_whatever_else_a_tenants_files_do_to_a_reader_is_its_own_problem(tmp_path, monkeypatch):
    """A mistake of ours in reading must not freeze what everybody else sees."""
    store, _ = store_of_two(tmp_path)
    real = Tenant.open

    def opened(tenant, entry, **named):
        if tenant.folder.name == "t-bad":
            raise ZeroDivisionError("a mistake")
        return real(tenant, entry, **named)

    monkeypatch.setattr(Tenant, "open", opened)
    seen = View(store.root, TOKENIZER).snapshot
    assert list(seen.tenants) == ["good"]
    assert len(seen.problems) == 2
    assert all("t-bad" in problem and "ZeroDivisionError: a mistake" in problem for problem in seen.problems)
