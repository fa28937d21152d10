"""SGLang's parsers of streams: alone, and with specplug, which gives them the tokens of a piece one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specplug_sglang.frontend import http
from tests.engines import streamed
from tests.engines.engines import Engine
from tests.engines.forms import FORMS, THOUGHTS

REQUIRED = "json array"  # what SGLang parses with `tool_choice: required`, by another parser than the model's
CALLED = {
    "apertus": "apertus2509",
    "cohere": "cohere_command4",
    "deepseek v3": "deepseekv3",
    "deepseek v3.1": "deepseekv31",
    "deepseek v3.2": "deepseekv32",
    "deepseek v4": "deepseekv4",
    "deepseek v4.1": "deepseekv41",
    "dots": "dots",
    "gemma": "gemma4",
    "gigachat": "gigachat3",
    "gigachat gcml": "gigachat35",
    "glm45": "glm glm45 ling3 poolside_v1",
    "glm47": "glm47",
    "harmony": "gpt-oss",
    "hermes": "hermes qwen qwen25 trinity",
    "hunyuan": "hunyuan",
    "inkling": "inkling",
    "intern": "interns1",
    "iquest": "iquest_q1",
    "k2 horizon": "k2_horizon",
    "kimi k2": "kimi_k2",
    "kimi k3": "kimi_k3",
    "lfm2": "lfm2",
    "llama": "llama3",
    "mimo": "mimo",
    "minicpm": "minicpm5",
    "minimax m2": "minimax-m2",
    "minimax m3": "minimax-m3",
    "mistral args": "mistral",
    "muse": "muse",
    "qwen xml": "nanbeige qwen3_coder step3p5",
    "python": "pythonic",
    "spark": "spark25",
    "step3": "step3",
}
"""By form the parsers of its calls."""
PARSERS = {parser: form for form, parsers in CALLED.items() for parser in parsers.split()} | {REQUIRED: "required"}
WITHOUT_A_FORM = {"beam", "response_template"}  # their forms come with the model
REASONED = {
    "apertus": "apertus2509",
    "cohere": "cohere_command4",
    "think": "deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 dots gigachat35 glm45 granite_thinking_parser hunyuan "
    "interns1 iquest_q1 kimi_k2 ling3 mimo nanbeige nemotron_3 poolside_v1 qwen3 qwen3-thinking",
    "opened": "deepseek-r1 minimax minimax-append-think qwen3-thinking step3 step3p5",
    "think, tools": "deepseek-r1 glm45 qwen3",
    "none": "deepseek-v3 qwen3",
    "gemma": "gemma4",
    "harmony": "gpt-oss",
    "inkling": "inkling",
    "k2 horizon": "k2_horizon",
    "kimi": "kimi",
    "kimi k3": "kimi_k3",
    "minimax m3": "minimax-m3",
    "mistral": "mistral",
    "muse": "muse",
}
"""By form the parsers of its reasoning."""
REASONING = [(parser, form) for form, parsers in REASONED.items() for parser in parsers.split()]


# Inside a process that has SGLang imported.


@contextmanager
def classes() -> Iterator[list[Any]]:
    """Yield the classes that specplug wraps, and leave them as they were."""
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    found = [FunctionCallParser, JsonArrayParser, ReasoningParser]
    names = ("parse_stream_chunk", "parse_streaming_increment", "parse_stream_chunk")
    originals = [getattr(owner, name) for owner, name in zip(found, names, strict=True)]
    yield found
    for owner, name, original in zip(found, names, originals, strict=True):
        setattr(owner, name, original)


def parsers(engine: Any) -> list[list[str]]:
    with classes() as (calls, _, reasoning):
        return [[*calls.ToolCallParserEnum], [*reasoning.DetectorMap]]


def tool_calls(engine: Any, parser: str, form: str) -> dict[str, Any]:
    """Parse an output with calls in pieces of several sizes, alone and with specplug."""
    from sglang.srt.entrypoints.openai.protocol import Tool

    tokenizer, tools = streamed.tokenizer(FORMS[form]), [Tool(**tool) for tool in streamed.TOOLS]
    _, texts = streamed.tokens(tokenizer, FORMS[form])
    with classes() as (function_calls, array, _):

        def parse(size: int) -> Any:
            chunks = ["".join(group) for group in streamed.grouped(texts, size)]
            if parser == REQUIRED:  # whose end, from 0.5.23 on, brings what earlier versions lose
                made = array()
                results = [made.parse_streaming_increment(chunk, tools) for chunk in chunks]
                return joined([(result.normal_text, result.calls) for result in results])
            made = function_calls(tools, parser, tokenizer=tokenizer)
            return joined([*map(made.parse_stream_chunk, chunks), made.parse_stream_end()])

        return compared(parse, tokenizer)


def joined(found: list[tuple[str | None, list[Any]]]) -> list[Any]:
    """Return what a client puts together: the calls with their places, and the content."""
    calls = dict[int, list[str]]()
    for item in (item for _, items in found for item in items):
        parts = calls.setdefault(item.tool_index, ["", ""])
        parts[0] += item.name or ""
        parts[1] += item.parameters or ""
    values = streamed.values((name, arguments) for name, arguments in calls.values())
    return [
        [[place, *call] for place, call in zip(calls, values, strict=True)],
        "".join(text or "" for text, _ in found),
    ]


def reasoning(engine: Any, parser: str, form: str) -> dict[str, Any]:
    """Parse an output with reasoning in pieces of several sizes, alone and with specplug."""
    tokenizer = streamed.tokenizer(THOUGHTS[form])
    _, texts = streamed.tokens(tokenizer, THOUGHTS[form])
    with classes() as (_, _, reasoning_parser):

        def parse(size: int) -> list[str]:
            made = reasoning_parser(parser)
            found = [made.parse_stream_chunk("".join(group)) for group in streamed.grouped(texts, size)]
            found.append(made.parse_stream_end())
            return ["".join(parts[place] or "" for parts in found) for place in (0, 1)]

        return compared(parse, tokenizer)


def compared(parse: Callable[[int], Any], tokenizer: Any) -> dict[str, Any]:
    """Return what single tokens give, and the sizes of pieces that give anything else, alone and with specplug."""
    single, alone, wrapped = parse(1), streamed.differing(parse), []
    for given in (tokenizer, None):
        http.parse_by_token(given)
        wrapped += [*streamed.differing(parse), *([] if parse(1) == single else ["1"])]
    return {"single": single, "alone": alone, "wrapped": wrapped}


def installs(engine: Any) -> list[Any]:
    """Install twice over a parser that returns what it gets; return the pieces of some texts."""
    tokenizer = streamed.tokenizer("<tool_call>")
    with classes() as (function_calls, _, _):
        seen: list[str] = []

        def parse(self: Any, text: str) -> tuple[str, list[Any]]:
            seen.append(text)
            return text, []

        function_calls.parse_stream_chunk = parse
        http.parse_by_token(None)
        http.parse_by_token(tokenizer)
        parser = function_calls([], "hermes")
        parsed = [parser.parse_stream_chunk(text) for text in ("", "a<tool_call>b")]
        assert function_calls.parse_stream_chunk._specplug_original is parse
        return [parsed, seen]


# Outside.


def test_every_parser_of_sglangs_is_compared(baseline: Engine):
    calls, thoughts = baseline.call(parsers)
    assert PARSERS.keys() - {REQUIRED} | WITHOUT_A_FORM == {*calls}
    assert {parser for parser, _ in REASONING} | WITHOUT_A_FORM == {*thoughts}


@pytest.mark.parametrize("parser", PARSERS)
def test_calls_are_parsed_as_token_by_token(baseline: Engine, parser: str):
    found = baseline.call(tool_calls, parser=parser, form=PARSERS[parser])
    assert found["single"][0] == [[place, *call] for place, call in enumerate(streamed.expected(PARSERS[parser]))]
    assert found["alone"] == streamed.documented("SGLang's tool calls", parser, 2), "tests/engines/streamed_parsers.md"
    assert not any(found["wrapped"])


@pytest.mark.parametrize(("parser", "form"), REASONING)
def test_reasoning_is_parsed_as_token_by_token(baseline: Engine, parser: str, form: str):
    found = baseline.call(reasoning, parser=parser, form=form)
    thoughts, content = found["single"]
    if parser != "minimax-append-think":  # which leaves reasoning in the content
        assert ("four" in thoughts, "four" in content) == (form != "none", False)
    assert found["alone"] == streamed.documented("SGLang's reasoning", parser, 2), "tests/engines/streamed_parsers.md"
    assert not any(found["wrapped"])


def test_a_later_install_replaces_the_tokenizer_and_does_not_wrap_twice(baseline: Engine):
    parsed, seen = baseline.call(installs)
    assert parsed == [["", []], ["a<tool_call>b", []]]
    assert seen == ["", "a", "<tool_call>", "b"]


@pytest.mark.parametrize("text", ["", "a", "a 👩‍👩‍👧 é e\u0301 日本<tool_call>x", "\ufffd", "  \n\n "])
def test_pieces_join_to_the_text_and_split_no_character(text: str):
    for tokenizer in (streamed.tokenizer("<tool_call>"), byte_fallback(), None):
        found = list(http.pieces(text, tokenizer))
        assert "".join(found) == text
        assert found == [text] or all(found)
    assert "<tool_call>" not in text or "<tool_call>" in http.pieces(text, streamed.tokenizer("<tool_call>"))


def byte_fallback() -> Any:
    """Return a tokenizer that spells nearly every character as its bytes, after a space that is not in the text."""
    from tokenizers import Tokenizer, models, normalizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "▁", "a", "x", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=made)
