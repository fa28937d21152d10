"""The n-gram proposers as plug-ins, and the plain one's drafts; what is remembered is tested in test_ngram_memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.assembly import build_draft_stage, build_part
from specplug.host import HostDraft
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry, default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import Settings
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.types.caps import EngineCaps
from specplug.types.request import Reference, Request
from specplug_ngram import plugin
from specplug_ngram.reference import OWN_TEXT, REFERENCE, NgramReference, ReferenceSettings
from tests.proposers.lookup_contract import LookupContract, on_engine


def spec(name: str, *, trees: bool = False) -> ProposerSpec:
    registry = Registry()
    registry.add(plugin, Owner("ngram", "specplug", "test"))
    return on_engine(registry.get(ProposerSpec, name), trees=trees)


class TestReferenceContract(ProposerContract):
    spec = spec("ngram-reference")


class TestContract(LookupContract):
    spec = spec("ngram")


class TestTreeContract(LookupContract):
    spec = spec("ngram", trees=True)


def ngram(min_n: int, max_n: int) -> NgramReference:
    options = ReferenceSettings(min_n=min_n, max_n=max_n)
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


@settings(max_examples=150)
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


def test_new_references_under_an_old_name_are_noticed() -> None:
    proposer = ngram(1, 4)
    assert list(draft(proposer, [3], 1, references=[[3, 4]]).token_ids) == [4]
    assert list(draft(proposer, [3], 1, references=[[3, 5]]).token_ids) == [5]


@pytest.mark.parametrize("trees", [False, True])
def test_the_engine_decides_between_chains_and_trees_and_parts_draft_chains(trees: bool) -> None:
    context = PluginContext(EngineCaps(4, trees=trees), vocab_size=64, max_slots=2, max_length=32)
    stage = build_draft_stage(Settings(proposer="ngram"), default_registry(), context)
    assert (stage.runners[0].buffer.parents is not None) == trees
    part = build_part("ngram", Settings(), default_registry(), context, lambda _name, _kind: None, ("whole",))
    assert part.buffer.parents is None
    for each in (stage, part):
        each.close()


def test_a_copy_goes_on_behind_an_edit() -> None:
    """With min_n 0 a copy continues after a token that the source never had; with more it waits for a match."""
    copied = list(range(10, 30))
    text = [*copied, *copied[:8], 50]  # 50 stands in the place of copied[8]
    drafts = []
    for min_n in (0, 1):
        with Driver(spec("ngram"), {"min_n": min_n}, vocab_size=64) as driver:
            driver.start("edit", text[:-1])
            driver.step(draft_length=4)
            driver.extend("edit", text[-1:])
            drafts.append(driver.step(draft_length=4).by_request()["edit"].token_ids)
    assert drafts[0][:1] == (copied[8],) or drafts[0][:1] == (copied[9],)
    assert drafts[1] == ()


@pytest.mark.parametrize("before", [(50, 51, 52, 53, 54), (54, 53, 52, 51, 50), (52, 50, 53, 54, 51)])
def test_a_draft_goes_on_as_the_text_whose_token_it_begins_with(before: tuple[int, ...]) -> None:
    """After A that led to (10, 11) three times, then to (12, 13), either is drafted, and no mixture of the two."""
    text: list[int] = []
    for place, answer in zip(before, [(10, 11), (10, 11), (10, 11), (12, 13), ()], strict=True):
        text += [place, 30, 31, *answer]
    with Driver(spec("ngram"), vocab_size=64) as driver:
        driver.start("a", text[:-1])
        driver.step(draft_length=2)
        driver.extend("a", text[-1:])
        assert driver.step(draft_length=2).by_request()["a"].token_ids in {(10, 11), (12, 13)}


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("max_length", [2, 3, 17])
def test_the_smallest_sizes_are_served(trees: bool, max_length: int) -> None:
    """One slot with room for hardly any text, drafts of one token, and the least memory, which every response fills."""
    smallest = {"memory_tokens": 1, "max_n": 2}
    sizes = {"vocab_size": 4, "max_slots": 1, "max_length": max_length, "max_draft_length": 1}
    drafted = 0
    with Driver(spec("ngram", trees=trees), smallest, **sizes) as driver:
        for _ in range(160 // max_length):
            driver.start("a", [1], isolation_key="us", references=[[1, 2, 3, 1]])
            while (length := len(driver.text("a"))) < max_length:
                ids = driver.step(1).by_request()["a"].token_ids
                assert set(ids) <= {1, 2, 3}
                drafted += len(ids)
                driver.extend("a", [1 + length % 3])
            driver.step(0)
            driver.leave("a")
    assert drafted > 0
