"""Recorded answers of the benchmark on real models, read from a folder in the form of the recordings' repository."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.real_models import recordings
from benchmarks.real_models.__main__ import main
from benchmarks.real_models.recordings import HUBS, PASSAGES
from benchmarks.real_models.run import Task
from specplug.corpus.store import Store
from specplug.text.tokenizers import load_tokenizer
from specplug.tools.demo import model_path

ANSWER = '<<<domain>>>: Text\\n<<<code>>>: load(\\"first\\")\\n"'


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with three questions of each hub, and two APIs, of which one is named twice."""
    for hub in HUBS:
        asked = [{"question_id": number, "text": f" load {hub} {number}\\n"} for number in (3, 1, 2)]
        write(tmp_path / recordings.DATA / recordings.QUESTIONS.format(hub=hub), asked)
        answers = [{"question_id": number, "text": ANSWER} for number in (1, 2, 3)]
        write(tmp_path / recordings.DATA / recordings.ANSWERS.format(hub=hub), answers)
        apis = [{"api_name": f"{hub} {name}", "api_arguments": ["path"]} for name in ("first", "second", "first")]
        write(tmp_path / recordings.APIS.format(hub=hub), apis)
    write(tmp_path / recordings.TUNED_ON, [{"code": "{'code': 'import torch\\ntorch.hub.get()'}"}])
    return tmp_path


def test_answers_stand_beside_their_questions_hub_by_hub(clone):
    made = recordings.prompts(clone, 2, None, referring=False)
    assert [prompt.messages[0]["content"] for prompt in made] == [f"load {hub} {n}" for n in (1, 2) for hub in HUBS]
    assert {prompt.answer for prompt in made} == {'<<<domain>>>: Text\n<<<code>>>: load("first")'}
    assert not any(prompt.fields for prompt in made)
    assert [prompt.kind for prompt in made] == [*HUBS, *HUBS]


def test_references_are_the_passages_that_the_question_finds(clone):
    for prompt in recordings.prompts(clone, 1, 8, referring=True):
        [(name, found)] = prompt.fields.items()
        assert name == "specplug_references"
        assert sorted(found) == [
            f'api_name: {prompt.kind} {which}\napi_arguments: ["path"]' for which in ("first", "second")
        ]


def test_passages_are_the_documentation_and_paragraphs_up_to_their_number(clone, tmp_path):
    known = recordings.documentation(clone)
    assert len(known) == len(set(known)) == 2 * len(HUBS) + 1
    assert known[-1] == "{'code': 'import torch\ntorch.hub.get()'}"
    texts = recordings.passages(clone)
    assert texts[: len(known)] == known
    assert len(texts) == PASSAGES
    assert min(map(len, texts[len(known) :])) >= recordings.SHORTEST
    tiny = str(model_path("tiny"))
    store = Store(recordings.build(tmp_path / "store", known, tiny))
    decode = load_tokenizer(tiny).decode
    assert [decode(store.document(str(place))) for place in range(len(known))] == known


def test_a_task_of_recorded_answers_ends_where_they_are_cut(clone):
    prompts = recordings.prompts(clone, 1, 5, referring=False)
    tokenizer = load_tokenizer(str(model_path("tiny")))

    class Encoder:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            assert not add_special_tokens
            return tokenizer.encode(text).tolist()

    task = Task(prompts, [[1]] * len(prompts), 1, 0.0).recorded(Encoder())
    whole = tokenizer.encode(prompts[0].answer or "").tolist()
    given = task.given([0])
    assert given["answers"] == [whole[:5]]
    assert given["params"][0] == {"max_tokens": 5, "temperature": 0.0, "seed": 1_000_003, "ignore_eos": True}
    assert all(a.kind != b.kind for a, b in pairwise(task.prompts))


@pytest.mark.parametrize("options", [["--scenario", "corpus"], ["--scenario", "turns", "--recordings", "."]])
def test_recordings_are_for_the_scenarios_that_need_them(options, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["real_models", "--engine", "vllm-v1", *options])
    with pytest.raises(SystemExit):
        main()
    assert "--recordings is needed by --scenario corpus and references, and by no other" in capsys.readouterr().err
