"""Texts that an operator adds and removes over SGLang's own routes reach the proposers that hold corpora."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug_sglang.corpus_handover import SEPARATOR
from tests.engines.engines import Engine, HostDied, Raised
from tests.engines.plain import greedy, ids, prompts, tokenizer
from tests.engines.server import Server

MAX_TOKENS = 500
FIRST = ["There was a first text.", "And a second one."]
PROMPT = prompts()[2]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus that the server starts with."""
    return jsonl(tmp_path_factory.mktemp("corpora") / "first.jsonl", FIRST)


@pytest.fixture
def library(first: Path, serve: Callable[..., Server]) -> Iterator[Server]:
    """A server whose proposer holds corpora; it has none but the first again when the test is over."""
    settings = {"proposer": "corpus_holder", "policy": "fixed", "faults": {"host_deadline_ms": None}}
    server = serve(
        "SPECPLUG",
        environment={"SPECPLUG_CONFIG": json.dumps(settings)},
        speculative_ngram_external_corpus_path=str(first),
        speculative_ngram_external_corpus_max_tokens=MAX_TOKENS,
        name="library",
    )
    yield server
    for name in set(listed(server)) - {str(first)}:
        assert remove(server, name)[0] == 200


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and body of an answer."""
    given = {"data": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, **given), timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def add(server: Server, **body: Any) -> tuple[int, dict[str, Any]]:
    return post(server, "/add_external_corpus", body)


def remove(server: Server, name: Any) -> tuple[int, dict[str, Any]]:
    return post(server, "/remove_external_corpus", {"corpus_id": name})


def listed(server: Server) -> dict[str, int]:
    answer = json.loads(server.get("/list_external_corpora"))
    assert answer["success"]
    return answer["corpus_token_counts"]


def drafted(server: Server) -> int:
    """Answer the prompt rightly; return how many tokens of the answer were drafted."""
    requested = {"input_ids": list(PROMPT), "sampling_params": {"temperature": 0.0, "max_new_tokens": 40}}
    status, answer = post(server, "/generate", requested)
    assert (status, answer["output_ids"]) == (200, greedy(PROMPT, 40)["token_ids"])
    return answer["meta_info"]["spec_num_correct_drafts"]


def size(*texts: str) -> int:
    return sum(len(tokenizer().encode(text, add_special_tokens=False)) for text in texts)


def answer_text() -> str:
    return tokenizer().decode([*PROMPT, *greedy(PROMPT, 40)["token_ids"]], skip_special_tokens=True)


@pytest.mark.slow  # test_retrieval has it with the shipped proposer
def test_what_is_added_is_drafted_until_it_is_removed(library, first):
    assert drafted(library) == 0
    status, answer = add(library, corpus_id="answers", documents=[answer_text()])
    count = size(answer_text())
    assert (status, answer["success"], answer["corpus_id"]) == (200, True, "answers")
    assert answer["loaded_token_count"] == count
    assert listed(library) == {str(first): size(*FIRST), "answers": count}
    assert drafted(library) > 20
    status, answer = remove(library, "answers")
    assert (status, answer["success"]) == (200, True)
    assert listed(library) == {str(first): size(*FIRST)}
    assert drafted(library) == 0


def test_a_file_without_a_name(library, tmp_path):
    path = jsonl(tmp_path / "texts.jsonl", ["One text.", answer_text()])
    status, answer = add(library, file_path=str(path))
    assert (status, answer["loaded_token_count"]) == (200, size("One text.", answer_text()))
    assert listed(library)[answer["corpus_id"]] == answer["loaded_token_count"]
    assert drafted(library) > 20


def test_too_many_documents_are_cut(library):
    text = "word " * 100
    status, answer = add(library, corpus_id="long", documents=[text] * 20)
    held = MAX_TOKENS // (size(text) + 1)
    assert (status, answer["loaded_token_count"]) == (200, held * size(text))
    assert f"truncated: exceeded {MAX_TOKENS} token limit" in answer["message"]
    status, answer = add(library, corpus_id="more", documents=[text])
    assert (status, answer["success"], answer["corpus_id"]) == (400, False, "")
    assert "too much text" in answer["message"]
    assert "--speculative-ngram-external-corpus-max-tokens" in answer["message"]
    assert "more" not in listed(library)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either file_path or documents"),
        ({"corpus_id": "raises", "documents": ["a text"]}, "ValueError: this corpus is not to my taste"),
        ({"corpus_id": "exits", "documents": ["a text"]}, "SystemExit: 3"),
        ({"corpus_id": "strange", "documents": ["a text"]}, "proposer 'corpus_holder': add_corpus failed"),
        ({"corpus_id": 5, "documents": ["a text"]}, "corpus_id is wrong; found 5; expected a string"),
        ({"documents": "a text"}, "documents is wrong"),
        ({"documents": ["a text", 7]}, "documents is wrong"),
        ({"file_path": "/no/such/file"}, "does not exist"),
        ({"file_path": ["a"]}, "file_path is wrong"),
        ({"documents": ["a text"], "tenant": "x"}, "tenant"),
    ],
)
def test_what_cannot_be_added(body, message, library, first):
    """A refused order does not affect other requests."""
    status, answer = add(library, **body)
    assert (status, answer["success"]) == (400, False)
    assert message in answer["message"]
    assert set(listed(library)) == {str(first)}
    drafted(library)


def test_a_line_that_is_no_text(library, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('"One text."\n{"text": "another"}\n')
    status, answer = add(library, file_path=str(path))
    assert status == 400
    assert "line 2" in answer["message"]


def test_a_name_is_taken_once(library):
    assert add(library, corpus_id="twice", documents=["a text"])[0] == 200
    status, answer = add(library, corpus_id="twice", documents=["another text"])
    assert status == 400
    assert "found 'twice'; expected a new name" in answer["message"]
    assert listed(library)["twice"] == size("a text")


@pytest.mark.parametrize(("name", "message"), [("none", "no corpus of this name"), (5, "expected a string")])
def test_what_cannot_be_removed(name, message, library):
    status, answer = remove(library, name)
    assert (status, answer["success"]) == (400, False)
    assert message in answer["message"]


def test_ids_of_the_tokenizer_are_those_of_prompts():
    """`size` counts the tokens that proposers see in prompts, except the one that begins a text."""
    assert ids("a text")[-size("a text") :] == tokenizer().encode("a text", add_special_tokens=False)


# Without a server


def requested(engine: Any, documents: list[str]) -> dict[str, dict[str, Any]]:
    """Ask an `Engine` as its routes would."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    manager, wait = engine.tokenizer_manager, engine.loop.run_until_complete
    given = AddExternalCorpusReqInput(corpus_id="x", documents=documents)
    answers = {
        "add": wait(manager.add_external_corpus(given)),
        "list": wait(manager.list_external_corpora()),
        "remove": wait(manager.remove_external_corpus("x")),
    }
    return {name: {"success": answer.success, "message": answer.message} for name, answer in answers.items()}


def test_without_a_proposer_that_holds_corpora(engine):
    plain: Engine = engine("SPECPLUG", name="specplug")
    for name, answer in plain.call(requested, documents=["a text"]).items():
        assert not answer["success"], name
        assert "no proposer of this server holds corpora; found ngram; expected one that" in answer["message"]
        assert answer["message"].endswith("in SPECPLUG_CONFIG")


def test_a_first_corpus_that_nobody_takes_stops_the_start(engine, first):
    wrong: Engine = engine("SPECPLUG", speculative_ngram_external_corpus_path=str(first), name="no corpus holder")
    with pytest.raises((HostDied, Raised), match="no proposer of this server holds corpora; found ngram"):
        wrong.running()


def separator(engine: Any) -> int:
    from sglang.srt.speculative.cpp_ngram.external_corpus import SEPARATOR_TOKEN

    return SEPARATOR_TOKEN


def test_the_separator_is_sglangs(baseline):
    assert baseline.call(separator) == SEPARATOR


@pytest.mark.slow
def test_sglangs_own_are_left_alone(engine, baseline):
    for answer in baseline.call(requested, documents=["a text"]).values():
        assert answer == {"success": False, "message": "Ngram speculative decoding is not enabled."}
    own: Engine = engine("NGRAM", topk=4, name="trees, overlapped")
    answers = own.call(requested, documents=["a text"])
    assert all(answer["success"] for answer in answers.values()), answers
