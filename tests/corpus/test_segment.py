"""A segment's file: what is in it, that safetensors reads it, and that nothing else is taken for one."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.corpus import segment as segment_module
from specplug.corpus.files import PIECE
from specplug.corpus.inspecting import broken_invariants
from specplug.corpus.segment import NO_TEXT, SECTIONS, SEGMENT_FORMAT, Segment, check_sections, write_segment
from specplug.corpus.segment_arrays import Builder, checked
from specplug.errors import CorpusError
from tests.corpus.tools import OTHER, TOKENIZER, document, overwrite, plain_places, some_documents


def built(documents, corpora=("c",)) -> Builder:
    builder = Builder()
    for at, one in enumerate(documents):
        builder.append(corpora[at % len(corpora)], one.name.encode(), checked(one, TOKENIZER.vocab_size))
    return builder


def write(path, documents, corpora=("c",)) -> Segment:
    builder = built(documents, corpora)
    size = write_segment(path, builder.sections(), builder.corpora, TOKENIZER)
    assert path.stat().st_size == size
    return Segment(path, TOKENIZER)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0123456789abcdef-0.safetensors"


def test_what_is_written_is_read(path):
    documents = [document("a", [1, 2, 3], [4, 2], [5]), document("b", [6]), document("a", [7, 7])]
    segment = write(path, documents, ("x", "y"))
    n = NO_TEXT
    assert segment.text.tolist() == [n, 1, 2, 3, n, 4, 2, n, 5, n, 6, n, 7, 7, n]
    assert segment.starts.tolist() == [1, 10, 12, 15]
    assert segment.lengths.tolist() == [3, 1, 2]
    assert segment.corpus_of.tolist() == [0, 1, 0]
    assert (segment.corpora, segment.id, len(segment)) == (("x", "y"), "0123456789abcdef-0", 3)
    assert [segment.name(i) for i in range(3)] == ["a", "b", "a"]
    assert [segment.document(i).tolist() for i in range(3)] == [[1, 2, 3], [6], [7, 7]]
    assert (segment.find("a"), segment.find("b"), segment.find("c")) == ([0, 2], [1], [])
    assert (segment.find("a", "x"), segment.find("a", "y"), segment.find("b", "z")) == ([0, 2], [], [])
    assert segment.places.tolist() == plain_places(segment.text.tolist())
    assert broken_invariants(segment, 100) == []
    for name in SECTIONS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(segment, name)[0] = 0
    os.unlink(path)
    assert segment.document(2).tolist() == [7, 7]


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 90))
@settings(max_examples=40)
def test_any_documents_are_kept_and_found(tmp_path_factory, seed, count, size):
    documents = some_documents(seed, count, size)
    segment = write(tmp_path_factory.mktemp("segment") / "s.safetensors", documents, ("x", "y", "z"))
    assert [segment.document(i).tolist() for i in range(count)] == [d.token_ids.tolist() for d in documents]
    assert [segment.find(d.name) for d in documents] == [[i] for i in range(count)]
    assert segment.places.tolist() == plain_places(segment.text.tolist())
    assert broken_invariants(segment, TOKENIZER.vocab_size) == []
    check_sections(segment)


def test_safetensors_reads_it(path):
    segment = write(path, some_documents(1), ("x", 'ÿ"\\'))
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == set(SECTIONS)
        for name in SECTIONS:
            assert np.array_equal(file.get_tensor(name), getattr(segment, name))
            assert file.get_tensor(name).dtype == getattr(segment, name).dtype
            assert getattr(segment, name).ctypes.data % getattr(segment, name).itemsize == 0
        metadata = file.metadata()
    assert json.loads(metadata["corpora"]) == ["x", 'ÿ"\\']
    assert (metadata["format"], metadata["version"], metadata["tokenizer"]) == (SEGMENT_FORMAT, "2", TOKENIZER.digest)


@pytest.mark.parametrize(
    ("ids", "found"),
    [([1, -1], "id -1"), ([100], "id 100"), ([1.5], "float64"), ([[1, 2]], r"shape \(1, 2\)"), ([2**40], "id 1099")],
)
@pytest.mark.parametrize("prefix", [False, True])
def test_what_is_no_line_of_tokens_is_refused(ids, found, prefix):
    wrong = document("d", [1])._replace(**{"prefixes": (np.array(ids),)} if prefix else {"token_ids": np.array(ids)})
    with pytest.raises(CorpusError, match=f"document 'd': not the tokens of a document; found .*{found}"):
        checked(wrong, 100)


def test_what_is_torn_at_any_byte_is_refused(path):
    write(path, some_documents(2))
    data = path.read_bytes()
    for size in [*range(0, len(data), 7), len(data) - 1]:
        overwrite(path, data[:size])
        with pytest.raises(CorpusError, match=path.name):
            Segment(path)
    overwrite(path, data + b"\0")
    with pytest.raises(CorpusError, match="instead of"):
        Segment(path)


@given(st.integers(0, 2**32), st.integers(0, 7))
@settings(max_examples=150)
def test_a_flipped_bit_anywhere_is_found(tmp_path_factory, place, bit):
    path = tmp_path_factory.mktemp("flipped") / "s.safetensors"
    write(path, some_documents(3))
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    overwrite(path, data)
    with pytest.raises(CorpusError, match=r"s\.safetensors"):
        check_sections(Segment(path))


FOREIGN = [
    *(b"", b"\0" * 4096, b"\xff" * 4096),
    *(size.to_bytes(8, "little") + b"[" * size for size in (1000, 90_000)),
    safetensors.numpy.save({"text": np.zeros(5, np.int32)}),
]


@pytest.mark.parametrize("data", FOREIGN)
def test_external_bytes_are_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="torn or foreign"):
        Segment(path)


def test_other_peoples_safetensors_are_refused_by_their_format(path):
    safetensors.numpy.save_file({"text": np.zeros(5, np.int32)}, path, {"format": "pt", "version": "1"})
    with pytest.raises(CorpusError, match="not a file of a corpus store; found 'pt'"):
        Segment(path)


def test_a_newer_version_and_another_tokenizer_are_refused(path, monkeypatch):
    write(path, some_documents(3))
    with pytest.raises(CorpusError, match=r"another tokenizer; found 'letters' \(a1.*expected 'words' \(b2"):
        Segment(path, OTHER)
    assert len(Segment(path)) == 3
    data = path.read_bytes()
    overwrite(path, data.replace(b'"version":"2"', b'"version":"3"', 1))
    with pytest.raises(CorpusError, match=r"another version.*found version 3; expected 2. Update specplug"):
        Segment(path)


@pytest.mark.parametrize(
    ("section", "at", "value", "broken"),
    [
        ("text", 3, 100, "vocabulary"),
        ("text", 3, NO_TEXT, "not closed"),
        ("starts", 1, 21, "out of order"),
        ("lengths", 0, 0, "out of order"),
        ("corpus_of", 1, 1, "no corpus"),
        ("name_hashes", 0, 5, "name_hashes"),
        ("name_order", 0, 7, "names of no document"),
        ("name_ends", 0, 4, "names"),
        ("names", 0, 0xFF, "names"),
        ("places", 0, 0, "places"),
        ("places", 0, 10**6, "places"),
        ("places", 3, "swap", "places"),
    ],
)
def test_broken_promises_are_found(path, monkeypatch, section, at, value, broken):
    builder = built(some_documents(4))
    sections = {name: np.array(array) for name, array in builder.sections().items()}
    if value == "swap":
        sections[section][[at, at + 1]] = sections[section][[at + 1, at]]
    else:
        sections[section][at] = value
    write_segment(path, sections, builder.corpora, TOKENIZER)
    try:
        found = broken_invariants(Segment(path), TOKENIZER.vocab_size)
    except CorpusError as error:  # what leads out of the file is seen at once
        found = [str(error)]
    assert any(broken in what for what in found)


def test_keys_are_compared_no_further_than_stated(path):
    """Two places whose keys agree in all that is compared stand in the order of the text."""
    same = [1, 2] * 60
    segment = write(path, [document("a", [9, *same, 3]), document("b", [8, *same, 4])])
    assert segment.places.tolist() == plain_places(segment.text.tolist())
    assert broken_invariants(segment, 100) == []


def test_opening_reads_the_header_and_takes_no_memory(path, monkeypatch):
    count = 200_000
    builder, one = Builder(), np.array([1, 2], np.int32)
    for i in range(count):
        builder.append("c", b"document %d" % i, [one])
    segment = write_segment(path, builder.sections(), builder.corpora, TOKENIZER) and None
    read, pread = [], os.pread

    def counting(handle, size, offset):
        read.append(size)
        return pread(handle, size, offset)

    monkeypatch.setattr(segment_module.os, "pread", counting)
    tracemalloc.start()
    segment = Segment(path, TOKENIZER, readahead=True)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(read) < 10_000
    assert taken < 100_000
    assert segment.find("document 123456") == [123456]
    assert segment.size < count * (2 * 8 + 4 + 60)


def test_nothing_is_written_or_hashed_in_large_pieces(path, monkeypatch):
    sizes, write_some = [], os.write

    def counting(handle, data):
        sizes.append(len(data))
        return write_some(handle, data[: max(1, len(data) // 2)])  # and not all of it at once

    monkeypatch.setattr(os, "write", counting)
    segment = write(path, [document("large", np.arange(600_000) % 90)])
    assert max(sizes) <= PIECE
    check_sections(segment)
