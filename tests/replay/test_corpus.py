"""Replay with corpora: documents of the requests, distractors, and prompts without their documents."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from specplug.cli.app import app
from specplug.corpus.view import View
from specplug.errors import SettingsError, TraceError
from specplug.replay.engine import Setup
from specplug.replay.items import DISTRACTOR_TOKENS, Item, corpora_of, distractors, without_documents
from specplug.replay.run import replay
from tests.replay.tools import Planted, item, registry

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
        for index in range(len(live.segment)):
            corpus = live.segment.corpora[live.segment.corpus_of[index]]
            found.setdefault(corpus, []).append(live.segment.document(index).tolist())
    return [*found.items()]


def ids(*values):
    return np.array(values, np.int32)


def test_a_workloads_documents_are_one_corpus_and_equal_ones_are_in_it_once():
    assert held() == [[("documents", [LEFT, RIGHT])]]


def test_in_cold_mode_every_new_proposer_may_draft_from_all_of_it():
    assert held(mode="cold") == held() * 2


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
    found = distractors([first, second], 2)
    assert [[text.tolist() for text in corpus] for corpus in found] == [[[1, 1, 1], [7]], [[5], [2], [6]]]
    assert distractors([first, second], 0) == ()


def test_a_distractor_is_of_bounded_size():
    prompts = [np.arange(number, number + 20_000, dtype=np.int32) for number in range(9)]
    sizes = [sum(text.size for text in corpus) for corpus in distractors([prompts], 3)]
    assert sizes == [DISTRACTOR_TOKENS] * 3


def test_too_few_prompts_for_distractors_are_an_error():
    with pytest.raises(SettingsError, match=r"prompts for 2.*at least 3"):
        distractors([[ids(1), ids(2), ids(2)]], 3)


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


def invoke(*arguments):
    fixed = ("--tokenizer", "tiny", "--batch", "1", "--proposer", "retrieval", "--policy", "fixed", "--json")
    return CliRunner().invoke(app, ["replay", *arguments, *fixed])


def test_the_command_line_hands_over_corpora(traces):
    def tau(*more):
        result = invoke(traces, "--workloads", "rag", *more)
        assert result.exit_code == 0, result.output
        (run,) = json.loads(result.stdout)["runs"]
        return run["workloads"]["rag"]["tau"]

    cut = tau("--cut-documents")
    assert cut < tau("--cut-documents", "--corpus") == tau("--cut-documents", "--corpus", "--distractors", "2")
    assert cut < tau()


def test_the_command_line_says_where_distractors_would_come_from(traces):
    result = invoke(traces, "--corpus", "--distractors", "3")
    assert result.exit_code != 0
    assert "too few prompts" in str(result.output) + str(result.exception)
