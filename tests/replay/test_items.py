from __future__ import annotations

import json

import numpy as np
import pytest

from specplug.errors import SettingsError, TraceError
from specplug.replay.items import Item, read_traces, tokenize
from specplug.text.loading import load_tokenizer

GOOD = {"id": "1", "workload": "chat", "source": "x", "prompt": "Hi", "documents": ["D"], "output": "Hello"}


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_folder_is_read_by_name_and_items_keep_their_order(tmp_path):
    write(tmp_path / "b.jsonl", GOOD | {"workload": "rag"})
    write(tmp_path / "a.jsonl", GOOD | {"id": "2"}, "", GOOD)
    (tmp_path / "other.txt").write_text("no trace")
    found = read_traces(tmp_path)
    assert list(found) == ["chat", "rag"]
    assert [item.id for item in found["chat"]] == ["2", "1"]
    assert found["chat"][1] == Item(id="1", workload="chat", prompt="Hi", documents=("D",), output="Hello")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({k: v for k, v in GOOD.items() if k != "output"}, ["output", "required"]),
        (GOOD | {"prompt": 3}, ["prompt", "string"]),
        (GOOD | {"documents": "D"}, ["documents"]),
        ("{not json", ["JSON"]),
        ([1], ["object"]),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line, words):
    path = write(tmp_path / "a.jsonl", GOOD, line)
    with pytest.raises(TraceError) as error:
        read_traces(path)
    for word in [f"{path}, line 2", *words]:
        assert word in str(error.value)


def test_ids_are_unique_within_a_file(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD, GOOD)
    with pytest.raises(TraceError, match=r"line 2: duplicate id; found '1' again, first on line 1"):
        read_traces(path)


def test_no_items_and_no_file_are_errors(tmp_path):
    with pytest.raises(TraceError, match="no items"):
        read_traces(tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        read_traces(tmp_path / "gone.jsonl")


def test_the_shipped_models_tokenizer_by_name_and_by_path():
    by_name = load_tokenizer("tiny")
    from specplug.demo import model_path

    folder = model_path("tiny")
    text = "def f(x):\n    return x\n"
    ids = by_name.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == load_tokenizer(str(folder)).encode(text).tolist()
    assert ids.tolist() == load_tokenizer(str(folder / "tokenizer.json")).encode(text).tolist()
    assert by_name.eos_id == 0
    assert 0 <= ids.min() <= ids.max() < by_name.fingerprint.vocab_size


def test_outputs_end_with_eos_and_nothing_else_is_added():
    tokenizer = load_tokenizer("tiny")
    (item,) = tokenize([Item.model_validate_json(json.dumps(GOOD))], tokenizer)
    assert item.output.tolist() == [*tokenizer.encode("Hello"), tokenizer.eos_id]
    assert item.prompt.tolist() == tokenizer.encode("Hi").tolist()
    assert [d.tolist() for d in item.documents] == [tokenizer.encode("D").tolist()]
    assert not item.prompt.flags.writeable


def test_tekken():
    pytest.importorskip("mistral_common")
    tokenizer = load_tokenizer("tekken")
    assert (tokenizer.eos_id, tokenizer.fingerprint.vocab_size) == (2, 131_072)
    assert tokenizer.encode("Hello world").tolist() == [22177, 4304]


def test_an_unknown_tokenizer_is_reported_what_there_is():
    with pytest.raises(SettingsError, match="Did you mean 'tekken'"):
        load_tokenizer("teken")


def test_a_tokenizer_without_an_end_says_what_to_add(tmp_path):
    from tokenizers import Tokenizer, models

    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(file))
    with pytest.raises(SettingsError, match=r"no end-of-sequence token.*tokenizer_config\.json"):
        tokenize([Item.model_validate_json(json.dumps(GOOD))], load_tokenizer(str(file)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "b"}}))
    assert load_tokenizer(str(file)).eos_id == 1


def test_chat_logs_are_items(tmp_path):
    parts = [{"type": "text", "text": "What is "}, {"type": "image_url"}, {"type": "text", "text": "this?"}]
    requested = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answered = [*requested, {"role": "assistant", "content": "A cat."}]
    called = [*requested, {"role": "assistant", "content": None, "tool_calls": []}]
    lines = [{"messages": answered}, {"messages": called, "id": "b", "workload": "tools"}]
    file = tmp_path / "support.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = read_traces(file)
    prompt = "Be brief.\n\nWhat is this?"
    assert found == {
        "support": [Item(id="1", workload="support", prompt=prompt, output="A cat.")],
        "tools": [Item(id="b", workload="tools", prompt=prompt, output="")],
    }


def test_a_chat_without_an_answer_is_no_item(tmp_path):
    file = tmp_path / "support.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello?"}]}))
    with pytest.raises(TraceError, match=r"line 1: no item of a trace.*of which the last is the assistant's"):
        read_traces(file)
