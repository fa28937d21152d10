"""How a piece of vLLM's streams is cut into the texts of its tokens, and how the messages of its tokens are merged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

from specplug_vllm.frontend import tool_streams
from tests.engines import streamed


def texts_of(text: str, sizes: list[int], held: int = 0) -> tuple[list[str], list[str]]:
    """Cut a stream whose text lags behind its tokens by some characters; return it and what the tokens spell."""
    tokenizer = streamed.tokenizer("<tool_call>")
    ids, spelled = streamed.tokens(tokenizer, text)
    made = tool_streams.TokenTexts(tokenizer, (5,), skip_special_tokens=False)
    found = []
    start = 0
    shown = 0
    for size in [*sizes, len(ids) - sum(sizes)]:
        end = start + size
        until = len(text) if end == len(ids) else max(shown, len("".join(spelled[:end])) - held)
        cut = made.cut(text[shown:until], ids[start:end])
        assert cut is not None
        assert (len(cut), "".join(cut)) == (size, text[shown:until])
        found += cut
        start = end
        shown = until
    return found, spelled


@pytest.mark.parametrize("text", ["Hello, you.", "a 👩\u200d👧 é 日本<tool_call>x", "\ufffd b", "  \n\n a, b."])
def test_tokens_get_their_own_text_also_where_characters_have_several(text: str):
    for sizes in ([1, 1, 1], [2], [3, 1], []):
        found, spelled = texts_of(text, sizes)
        assert found == spelled


def test_text_that_is_held_back_for_stop_strings_is_cut_as_it_comes_with_single_tokens():
    text = "The answer is <tool_call> and so on."
    single, spelled = texts_of(text, [1] * 10, held=6)
    found, _ = texts_of(text, [1, 1, 1, 1, 2, 2], held=6)
    assert found == single != spelled


def test_a_piece_whose_tokens_spell_another_text_is_not_cut_and_the_next_one_is():
    tokenizer = streamed.tokenizer("<tool_call>")
    made = tool_streams.TokenTexts(tokenizer, (), skip_special_tokens=False)
    ids, spelled = streamed.tokens(tokenizer, "One two three.")
    assert made.cut("", ids[:1]) == [""]  # held back
    assert made.cut("something", ids[1:3]) is None
    assert made.cut("".join(spelled[3:]), [*ids[3:], tokenizer.eos_token_id]) == [*spelled[3:], ""]  # an end has none


def test_the_space_before_the_first_word_is_the_texts_although_decoders_drop_it_from_beginnings():
    from tokenizers import Tokenizer, decoders, models

    backend = Tokenizer(models.BPE({"<unk>": 0, "▁a": 1, "▁b": 2}, [], unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    made = tool_streams.TokenTexts(SimpleNamespace(backend_tokenizer=backend), (2,), skip_special_tokens=False)
    assert made.cut(" a b", [1, 2]) == [" a", " b"]


def test_special_tokens_have_text_if_the_request_asks_for_it():
    tokenizer = streamed.tokenizer("<tool_call>")
    end = tokenizer.eos_token_id
    word = tokenizer.encode("a", add_special_tokens=False)[0]
    seen: list[tuple[str, list[int]]] = []

    class Recorder:
        model_tokenizer = tokenizer

        def parse_delta(self, delta_text: str, delta_token_ids: list[int], *_: Any, finished: bool) -> None:
            seen.append((delta_text, delta_token_ids))

    for skip, text in ((False, tokenizer.eos_token), (True, "")):
        made = tool_streams.by_token(Recorder)()
        made.parse_delta(f"a{text}a", [word, end, word], SimpleNamespace(skip_special_tokens=skip), finished=False)
        assert seen == [("a", [word]), (text, [end]), ("a", [word])]
        seen.clear()


# -- messages ---------------------------------------------------------------------------------------------------------


def call(index: int, arguments: str | None = None, name: str | None = None, id: str | None = None) -> DeltaToolCall:
    return DeltaToolCall(index=index, id=id, function=DeltaFunctionCall(name=name, arguments=arguments))


def test_messages_are_merged_in_order_and_arguments_join_their_call():
    messages = [
        None,
        DeltaMessage(reasoning="a"),
        DeltaMessage(reasoning="b", content="c"),
        DeltaMessage(tool_calls=[call(0, "", "read", "x")]),
        DeltaMessage(tool_calls=[call(0, "{")]),
        DeltaMessage(tool_calls=[call(0, "}"), call(1, None, "weather", "y")]),
        DeltaMessage(tool_calls=[call(1, "{}")]),
    ]
    found = tool_streams.merge(messages)
    assert (found.reasoning, found.content) == ("ab", "c")
    assert found.tool_calls == [call(0, "{}", "read", "x"), call(1, "{}", "weather", "y")]
    assert tool_streams.merge([None, None]) is None
