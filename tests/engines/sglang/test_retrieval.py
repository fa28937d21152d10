"""Corpora that SGLang's routes change while it serves reach the `retrieval` proposer, and its store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.corpus import Document, Store, View, fingerprint, tokenized
from tests.engines.plain import assert_greedy, greedy, prompts, tokenizer
from tests.engines.sglang.engines import Engine

PROMPTS = [list(prompt) for prompt in prompts()[:6]]
PROMPT = PROMPTS[2]
FIRST = "There was a first text."
MOST = 5000  # tokens of what has no store
WAIT = 120.0


def settings(proposer: str, **corpora: Any) -> dict[str, str]:
    """Return the environment of an engine that remembers no responses: what it drafts again, corpora drafted."""
    stated = {
        "proposer": proposer,
        "policy": "fixed",
        "faults": {"host_deadline_ms": None},
        "options": {proposer: {"memory_tokens": 0}},
        "corpora": {"poll_seconds": 0.05, **corpora},
    }
    return {"SPECPLUG_CONFIG": json.dumps(stated)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the store that the engine creates."""
    return tmp_path_factory.mktemp("corpora") / "store"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus that one engine starts with."""
    path = tmp_path_factory.mktemp("corpora") / "first.jsonl"
    path.write_text(json.dumps(FIRST))
    return path


@pytest.fixture(scope="module")
def stored(engine: Callable[..., Engine], folder: Path, first: Path) -> Engine:
    """Chains, and a store."""
    environment = settings("retrieval", store=str(folder))
    return engine(
        "SPECPLUG",
        environment=environment,
        speculative_ngram_external_corpus_path=str(first),
        name="retrieval, stored",
    )


@pytest.fixture(scope="module")
def loose(engine: Callable[..., Engine]) -> Engine:
    """Trees, and no store."""
    return engine("SPECPLUG", topk=4, environment=settings("retrieval", max_tokens=MOST), name="retrieval, loose")


# Inside the engine's process


def added(engine: Any, **fields: Any) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    answer = engine.loop.run_until_complete(
        engine.tokenizer_manager.add_external_corpus(AddExternalCorpusReqInput(**fields))
    )
    return {"success": answer.success, "message": answer.message, "tokens": answer.loaded_token_count}


def removed(engine: Any, name: str) -> dict[str, Any]:
    answer = engine.loop.run_until_complete(engine.tokenizer_manager.remove_external_corpus(name))
    return {"success": answer.success, "message": answer.message}


def listed(engine: Any) -> dict[str, int]:
    answer = engine.loop.run_until_complete(engine.tokenizer_manager.list_external_corpora())
    assert answer.success, answer.message
    return dict(answer.corpus_token_counts)


def reported(engine: Any) -> dict[str, Any]:
    """Return the worker's report: accepted drafts by source, faults, and the proposer's status."""
    from specplug_sglang import status

    worker = status.read(engine)[0]["workers"][0]
    (details,) = worker["details"].values()
    metrics = worker["metrics"]
    accepted = {name: counts["accepted"] for name, counts in metrics["by_source"].items()}
    return {"accepted": accepted, "faults": metrics["faults"], "details": details}


def while_corpora_change(engine: Any, texts: list[str], prompts: list[list[int]], rounds: int) -> dict[str, Any]:
    """Answer all prompts again and again while corpora are added and removed; return the answers of each round."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    from tests.engines.sglang.inside import described

    manager, changes, answers, done = engine.tokenizer_manager, [], [], []

    async def change() -> None:
        while not done:
            for number, text in enumerate(texts):
                given = AddExternalCorpusReqInput(corpus_id=f"c{number}", documents=[text] * 3)
                changes.append((await manager.add_external_corpus(given)).message)
            for number in range(len(texts)):
                changes.append((await manager.remove_external_corpus(f"c{number}")).message)

    async def ask() -> None:
        params = {"temperature": 0.0, "max_new_tokens": 40}
        for _ in range(rounds):
            requested = [engine.async_generate(input_ids=prompt, sampling_params=params) for prompt in prompts]
            answers.append([described(output) for output in await asyncio.gather(*requested)])
        done.append(True)

    async def both() -> None:
        await asyncio.gather(change(), ask())

    engine.loop.run_until_complete(both())
    return {"answers": answers, "changes": changes}


# Outside of it


def drafted(engine: Engine, prompt: list[int] = PROMPT, **stated: Any) -> int:
    """Answer a prompt rightly; return how many tokens of the answer were drafted."""
    given = {"custom_params": {f"specplug_{key}": value for key, value in stated.items()}} if stated else {}
    (answer,) = engine.call("inside.generate", prompts=[prompt], params=given)
    assert answer["token_ids"] == greedy(tuple(prompt))["token_ids"]
    return int(answer["meta"]["spec_num_correct_drafts"])


def answered(prompt: list[int] = PROMPT) -> str:
    """Return the text of a prompt and its answer."""
    return str(tokenizer().decode([*prompt, *greedy(tuple(prompt))["token_ids"]], skip_special_tokens=True))


def size(*texts: str) -> int:
    return sum(len(tokenizer().encode(text, add_special_tokens=False)) for text in texts)


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread of the engine does."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline


def accepted(engine: Engine, source: str) -> int:
    """Return how many drafted tokens of a source were accepted so far."""
    return sum(count for name, count in engine.call(reported)["accepted"].items() if name.endswith(f"/{source}"))


@pytest.mark.parametrize("which", ["stored", "loose"])
def test_what_is_added_is_drafted_until_it_is_removed(which, request):
    engine = request.getfixturevalue(which)
    plain, before, texts = drafted(engine), accepted(engine, "corpus"), ["A first text.", answered()]
    assert engine.call(added, corpus_id="answers", documents=texts)["tokens"] == size(*texts)
    assert engine.call(listed)["answers"] == size(*texts)
    assert drafted(engine) > max(plain, 20)
    if which == "stored":  # in trees own text stands after the first token, too
        assert accepted(engine, "corpus") > before
    assert engine.call(reported)["details"]["tenants"][""]["answers"] == size(*texts)
    assert engine.call(removed, name="answers")["success"]
    assert "answers" not in engine.call(listed)
    until(lambda: drafted(engine) == plain)
    assert engine.call(reported)["faults"] == {}


def test_a_name_is_free_as_soon_as_it_is_removed(stored):
    for _ in range(3):
        assert stored.call(added, corpus_id="again", documents=[answered()])["success"]
        assert "there already" in stored.call(added, corpus_id="again", documents=["a text"])["message"]
        assert stored.call(removed, name="again")["success"]
    assert "no corpus of this name" in stored.call(removed, name="again")["message"]


def test_an_opening_is_found_behind_a_new_line(stored, folder):
    """Documents come as token ids, and yet the store has the other ways in which they may begin."""
    text = "Return the rows of a table that match a given query, in the order in which they were added."
    assert stored.call(added, corpus_id="prefixes", documents=[text])["success"]
    segment = View(folder, None).snapshot.tenants[""][-1].segment
    assert segment.corpora == ("prefixes",)
    found = segment.text[segment.starts[0] : segment.starts[1]].tolist()
    expected = tokenized("", text, lambda given: tokenizer().encode(given, add_special_tokens=False))
    assert expected.prefixes
    assert all(contains(found, [*prefix.tolist(), -1]) for prefix in expected.prefixes)
    assert stored.call(removed, name="prefixes")["success"]


def contains(text: list[int], part: list[int]) -> bool:
    return any(text[at : at + len(part)] == part for at in range(len(text)))


def test_tenants_and_names_of_documents(stored, folder):
    """Another process writes to the store: its documents are seen by their tenant, and are references if named."""
    plain, text = drafted(stored), [*PROMPT, *greedy(tuple(PROMPT))["token_ids"]]
    own = Store.open(folder, fingerprint(tokenizer()))
    own.add("handbook", [Document("guide.md", np.array(text, np.int32))], tenant="a")
    until(lambda: "a" in stored.call(reported)["details"]["tenants"])
    assert stored.call(reported)["details"]["tenants"]["a"] == {"handbook": len(text)}
    assert "handbook" not in stored.call(listed)
    assert drafted(stored, tenant="b") == drafted(stored) == plain
    assert drafted(stored, tenant="a") > max(plain, 20)
    assert drafted(stored, tenant="a", corpora="handbook") > max(plain, 20)
    unknown = stored.call(reported)["details"]["unknown_documents"]
    assert drafted(stored, tenant="b", documents="guide.md") == plain
    assert drafted(stored, tenant="a", documents=["other.md", {"name": "guide.md", "corpus": "others"}]) > plain
    assert stored.call(reported)["details"]["unknown_documents"] == unknown + 3
    assert drafted(stored, tenant="a", documents="guide.md") > max(plain, 20)
    assert stored.call(reported)["details"]["unknown_documents"] == unknown + 3
    own.remove("handbook", tenant="a")
    until(lambda: drafted(stored, tenant="a") == plain)


def test_answers_are_right_while_corpora_come_and_go(stored):
    texts = [answered(prompt) for prompt in PROMPTS[:4]]
    found = stored.call(while_corpora_change, texts=texts, prompts=PROMPTS, rounds=3)
    expected = [greedy(tuple(prompt)) for prompt in PROMPTS]
    for answers in found["answers"]:
        assert_greedy(PROMPTS, expected, answers)
    assert len(found["changes"]) >= 2 * len(texts)
    wrong = [message for message in found["changes"] if not message.startswith(("Loaded corpus", "Removed corpus"))]
    assert wrong == []
    assert stored.call(reported)["faults"] == {}


def test_our_limit_counts_where_sglangs_is_not_set(stored, loose):
    """See `test_corpora` for one that is set."""
    assert stored.inside(limit) == 10**9
    message = loose.call(added, corpus_id="large", documents=["word " * MOST])["message"]
    assert f"nothing to add; found no text, or one that is too long; expected a text, {MOST} tokens at most" in message
    assert "Set corpora.max_tokens in SPECPLUG_CONFIG" in message
    assert loose.call(added, corpus_id="fitting", documents=["word " * (MOST // 8)] * 4)["success"]
    message = loose.call(added, corpus_id="more", documents=["word " * (MOST // 2)])["message"]
    assert "too much text" in message
    assert [*loose.call(listed)] == ["fitting"]
    assert loose.call(removed, name="fitting")["success"]


def limit(scheduler: Any) -> int:
    return int(scheduler.draft_worker.corpora.max_tokens)


@pytest.mark.slow  # an engine starts twice
def test_what_is_in_a_store_is_there_after_a_restart(stored, folder, first):
    assert stored.call(added, corpus_id="kept", documents=[answered()])["success"]
    stored.stop()
    kept = {corpus.name: (corpus.documents, corpus.tokens) for corpus in Store.open(folder).list("")}
    assert kept == {str(first): (1, size(FIRST)), "kept": (1, size(answered()))}
    assert stored.call(listed) == {name: tokens for name, (_, tokens) in kept.items()}
    assert f"corpus {first} is there already" in stored.log()
    assert drafted(stored) > 20
    assert stored.call(removed, name="kept")["success"]


@pytest.mark.slow  # an engine starts twice
def test_what_is_in_no_store_is_gone_after_a_restart(loose):
    assert loose.call(added, corpus_id="lost", documents=[answered()])["success"]
    loose.stop()
    assert loose.call(listed) == {}


def of_each(engine: Any) -> list[dict[str, Any]]:
    """Return the corpora of each data-parallel engine."""
    from specplug_sglang import status

    return [reported["workers"][0]["details"]["retrieval"]["tenants"].get("", {}) for reported in status.read(engine)]


@pytest.mark.slow
def test_several_engines_share_a_store(engine, tmp_path):
    """Both engines create the store, receive orders to add and to remove, and find them executed."""
    store, expected = str(tmp_path / "store"), {"answers": size(answered())}
    environment = {**settings("retrieval", store=store), "SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
    two = engine("SPECPLUG", dp_size=2, environment=environment, name="retrieval, two engines")
    assert two.call(added, corpus_id="answers", documents=[answered()])["tokens"] == size(answered())
    until(lambda: two.call(of_each) == [expected, expected])
    assert [drafted(two) > 20 for _ in range(4)] == [True] * 4
    assert two.call(listed) == expected
    assert two.call(removed, name="answers")["success"]
    until(lambda: two.call(of_each) == [{}, {}])
    assert not two.call(removed, name="answers")["success"]
