"""The retrieval example's parts that need no engine: retriever, questions, requests and table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.corpus.store import Store
from specplug.requests.parsing import parse_request_fields
from specplug.settings import Limits
from specplug.tools.demo.tasks import Task

EXAMPLES = Path(__file__).parents[1] / "examples"

sys.path.insert(0, str(EXAMPLES))
import rag_client  # noqa: E402
import rag_demo  # noqa: E402
import rag_tasks  # noqa: E402
import serving_demo  # noqa: E402

sys.path.remove(str(EXAMPLES))

TEXTS = ["one fish swims", "two birds sing and one flies", "a stone", "two stones and two birds"]


def test_the_best_text_comes_first_and_nothing_comes_that_shares_no_word():
    passages = rag_client.Passages(TEXTS)
    assert passages.find("which birds fly two by two?", 1) == [TEXTS[3]]
    assert set(passages.find("two birds", 4)) == {TEXTS[1], TEXTS[3]}
    assert passages.find("xyzzy", 4) == passages.find("", 4) == []
    assert passages.find("stone", 100) == [TEXTS[2]]


def test_paragraphs_are_read_from_texts_and_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no texts"):
        rag_client.read(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.md").write_text(f"# Title\n\n{'long ' * 9}\n\n{'longer ' * 9}\n")
    (tmp_path / "b.bin").write_bytes(b"\xff" * 100)
    assert rag_client.read(tmp_path) == [("long " * 9).strip(), ("longer " * 9).strip()]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_retrieved_text_that_looks_like_the_long_form_is_taken_as_it_is(engine):
    from specplug.requests import arguments

    record = rag_tasks.as_json(rag_tasks.records()[0])
    (body,) = rag_client.references(engine, [record]).values()
    given, rest = arguments.split(body)
    stated: list[str] = []
    parse_request_fields(
        given, tokenize=lambda text: stated.append(text) or [1], vocab_size=9, limits=Limits(), proposers=("ngram",)
    )
    assert ([text for text in stated if text == record], rest) == ([record], {})


@pytest.mark.parametrize("situation", rag_tasks.SITUATIONS)
def test_questions_are_honest(situation):
    questions = rag_tasks.questions(situation, 24)
    assert questions == rag_tasks.questions(situation, 24)
    assert questions != rag_tasks.questions(situation, 24, seed=1)
    store = rag_tasks.store(situation)
    for one in questions:
        assert 0 < len(one.references) <= rag_tasks.FOUND
        assert set(one.references) <= set(store)
        assert (one.references[0] in one.prompt) == (situation == "quote")
        assert not [text for text in store if one.answer in text] or situation == "quote"
        assert one.is_correct(one.answer)
    assert sum(one.is_found for one in questions) >= 18  # by the question alone


def test_earlier_answers_are_about_other_records():
    earlier = {json.loads(text)["name"] for text in rag_tasks.store("answers")}
    assert len(earlier) == rag_tasks.EARLIER
    assert not earlier & {json.loads(one.answer)["name"] for one in rag_tasks.questions("answers", 40)}


def test_the_store_has_all_that_can_be_retrieved_by_name(tmp_path):
    store = Store(rag_demo.build(tmp_path, seed=0))
    assert {one.name: one.documents for one in store.list()} == {
        situation: len(set(rag_tasks.store(situation))) for situation in rag_tasks.SITUATIONS
    }
    for situation in rag_tasks.SITUATIONS:
        (question,) = rag_tasks.questions(situation, 1)
        assert all(store.document(name, corpus=situation).size for name in question.names)


@pytest.mark.parametrize(("engine", "key"), [("vllm", "vllm_xargs"), ("sglang", "custom_params")])
def test_each_arm_sends_what_it_says(engine, key):
    plain, alone, referring, store, naming = rag_demo.arms(engine, *"pas")
    assert [arm.server for arm in (plain, alone, referring, store, naming)] == [*"paass"]
    assert plain.extra is alone.extra is store.extra is None
    (question,) = rag_tasks.questions("records", 1)
    assert referring.extra(question, "") == {key: {"specplug_references": [*question.references]}}
    assert naming.extra(question, "") == {key: {"specplug_documents": [rag_tasks.name(t) for t in question.references]}}


class Answering:
    """Stands for a server: what it was sent, and two steps for every request."""

    def __init__(self, says: str = "yes") -> None:
        self.says = says
        self.sent = []
        self.steps = 0

    def counts(self) -> dict[str, int]:
        return {
            "target_steps": self.steps,
            "proposed": 8 * self.steps,
            "accepted": 2 * self.steps,
            "emitted": 3 * self.steps,
            "after_stop": 0,
        }

    def ask(self, prompt: str, *, stream: bool, extra: Any = None) -> tuple[str, int, float]:
        self.sent.append((prompt, stream, extra))
        self.steps += 2
        return self.says, 6, 1.0 if extra else 2.0


@pytest.fixture
def compared(monkeypatch):
    """Compare two servers that answer at once, the second of them asked twice; return both and the rows."""
    monkeypatch.setattr(serving_demo, "ask", lambda server, *stated, **how: server.ask(*stated, **how))

    def compare(fast: Answering) -> SimpleNamespace:
        plain = Answering()
        tasks = {"quote": [Task("quote", f"p{number}", "yes") for number in range(5)]}
        arms = [
            serving_demo.Arm("plain", plain),  # type: ignore[arg-type]
            serving_demo.Arm("alone", fast),  # type: ignore[arg-type]
            serving_demo.Arm("more", fast, lambda task, expected: {task.prompt: expected}),  # type: ignore[arg-type]
        ]
        rows = serving_demo.report(serving_demo.compare(arms, tasks))
        return SimpleNamespace(plain=plain, fast=fast, rows=rows)

    return compare


def test_every_arm_is_requested_the_same_and_only_its_own_carries_something(compared):
    done = compared(Answering())
    plain = done.plain.sent[1:]
    fast = done.fast.sent[2:]
    assert [(f"p{number}", bool(number % 2), None) for number in range(5)] == plain
    assert sorted(sent[:2] for sent in fast) == sorted(2 * [sent[:2] for sent in plain])
    assert [extra for *_, extra in fast if extra] == [{f"p{number}": "yes"} for number in range(5)]
    first = [extra is None for *_, extra in fast[::2]]
    assert set(first) == {True, False}  # the arms take turns


def test_the_rows_count_steps_and_compare_with_the_first_arm(compared):
    plain, alone, more = compared(Answering()).rows
    assert [row["mode"] for row in (plain, alone, more)] == ["plain", "alone", "more"]
    assert (plain["tokens_per_step"], plain["acceptance_rate"], plain["tokens_per_second_ratio"]) == (1.0, None, 1.0)
    assert (alone["tokens_per_step"], alone["acceptance_rate"], alone["tokens_per_second_ratio"]) == (3.0, 0.25, 1.0)
    assert (more["tokens_per_second_ratio"], more["identical"], more["correct"], more["tasks"]) == (2.0, 5, 5, 5)


def test_the_table_shows_no_speed_where_texts_differ_and_the_demo_fails(compared, capsys):
    rows = compared(Answering("no")).rows
    with pytest.raises(SystemExit, match="texts differ"):
        serving_demo.finish({"rows": rows}, "a note", as_json=False)
    out = capsys.readouterr().out
    assert out.count("outputs differ") == 2
    assert out.count("0 of 5") == 4
    assert "a note" in out


def test_json_says_all(compared, capsys):
    stated = {"engine": "vllm", "rows": compared(Answering()).rows}
    serving_demo.finish(stated, "a note", as_json=True)
    assert json.loads(capsys.readouterr().out) == stated
