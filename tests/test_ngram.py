from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specplug.host import HostDraft
from specplug.interfaces import PluginContext
from specplug.registry import Owner, Registry
from specplug.specs import ProposerSpec
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.types.caps import EngineCaps
from specplug.types.request import Reference, Request
from specplug_ngram import plugin
from specplug_ngram.options import NgramOptions
from specplug_ngram.reference import OWN_TEXT, REFERENCE, NgramReference


def spec() -> ProposerSpec:
    registry = Registry()
    registry.add(plugin, Owner("ngram", "specplug", "test"))
    return registry.get(ProposerSpec, "ngram")


class TestContract(ProposerContract):
    spec = spec()


class TestContractShortestMatches(ProposerContract):
    spec = spec()
    options = MappingProxyType({"min_n": 1, "max_n": 1})


def ngram(min_n: int, max_n: int) -> NgramReference:
    options = NgramOptions(min_n=min_n, max_n=max_n)
    return NgramReference(PluginContext(EngineCaps(8), options=options))


def draft(
    proposer: NgramReference, text: list[int], limit: int, references: list[list[int]] | None = None
) -> HostDraft:
    request = None
    if references is not None:
        given = tuple(Reference.of(reference) for reference in references)
        request = Request("a", prompt_length=len(text), max_tokens=100, references=given)
    return proposer.draft(np.array(text, dtype=np.int32), limit, request)


def brute_force(
    text: list[int], references: list[list[int]], min_n: int, max_n: int, limit: int
) -> tuple[list[int], int, int]:
    """Try every length, longest first, every text in order, and every place in it, last first."""
    for n in range(max_n, min_n - 1, -1):
        if n > len(text):
            continue
        for index, where in enumerate([text, *references]):
            for end in range(len(where) - 1, n - 1, -1):
                if where[end - n : end] == text[-n:]:
                    return where[end : end + limit], n, REFERENCE if index else OWN_TEXT
    return [], 0, OWN_TEXT


tokens = st.lists(st.integers(0, 2), max_size=24)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.integers(0, 2), min_size=1, max_size=24),
    references=st.lists(tokens, max_size=3),
    bounds=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted),
    limit=st.integers(1, 6),
)
def test_equals_brute_force(text: list[int], references: list[list[int]], bounds: list[int], limit: int) -> None:
    min_n, max_n = bounds
    found = draft(ngram(min_n, max_n), text, limit, references)
    ids, n, source = brute_force(text, references, min_n, max_n, limit)
    assert list(found.token_ids) == ids
    if ids:
        assert found.source == source
        assert np.allclose(found.confidence, [(n + j + 1) / (n + j + 2) for j in range(len(ids))])


@pytest.mark.parametrize(
    ("text", "min_n", "max_n", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], 2, 4, [3, 9, 1]),  # what followed, as far as the limit
        ([1, 2, 7, 1, 2, 8, 1, 2], 2, 4, [8, 1, 2]),  # the most recent of equal matches
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 2, 4, [7, 6, 1]),  # a longer match beats a more recent one
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 2, 2, [8, 5, 1]),  # but no longer than max_n
        ([1, 2, 3, 4, 2], 2, 4, []),  # too short a match
        ([4, 4, 4, 4], 2, 4, [4]),  # a copy stops where its text ends
        ([1], 1, 4, []),
    ],
)
def test_plain_reading(text: list[int], min_n: int, max_n: int, expected: list[int]) -> None:
    assert list(draft(ngram(min_n, max_n), text, 3).token_ids) == expected


def test_own_text_wins_ties_and_references_win_by_length() -> None:
    proposer = ngram(1, 4)
    text = [1, 2, 9, 1, 2]
    tie = draft(proposer, text, 1, references=[[1, 2, 7]])
    assert (list(tie.token_ids), tie.source) == ([9], OWN_TEXT)
    longer = draft(proposer, text, 1, references=[[3, 1, 2], [9, 1, 2, 7], [9, 1, 2, 8]])
    assert (list(longer.token_ids), longer.source) == ([7], REFERENCE)


def test_new_references_under_an_old_name_are_noticed() -> None:
    proposer = ngram(1, 4)
    assert list(draft(proposer, [3], 1, references=[[3, 4]]).token_ids) == [4]
    assert list(draft(proposer, [3], 1, references=[[3, 5]]).token_ids) == [5]


def test_reference_is_named_in_the_draft() -> None:
    with Driver(spec(), vocab_size=64) as driver:
        driver.start("own", [1, 2, 3, 1, 2])
        driver.start("given", [1, 2], references=[[7, 1, 2, 5, 6]])
        drafts = driver.step(width=4).by_request()
    names = NgramReference.sources
    assert (drafts["own"].token_ids, names[drafts["own"].source]) == ((3, 1, 2), "own text")
    assert (drafts["given"].token_ids, names[drafts["given"].source]) == ((5, 6), "reference")


@pytest.mark.parametrize("wrong", [{"min_n": 3, "max_n": 2}, {"min_n": 0}, {"max_m": 4}])
def test_options_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=r"min_n|max_m"):
        NgramOptions(**wrong)


@pytest.mark.parametrize("module", ["specplug_ngram.plugin", "specplug_fixed.plugin"])
def test_registering_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(sorted({{'torch', 'pydantic', 'numpy'}} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
