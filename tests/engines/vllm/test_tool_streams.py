"""vLLM's parsers of streams: alone, and with specplug, which gives them the tokens of a piece one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses import serving, streaming_events
from vllm.entrypoints.openai.responses.streaming_events import SimpleStreamingEventProcessor, split_delta
from vllm.parser.parser_manager import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers.hf import get_cached_tokenizer
from vllm.tool_parsers import ToolParserManager

from specplug_vllm.frontend import tool_streams
from specplug_vllm.frontend.tool_streams import split_in_order
from tests.engines import streamed
from tests.engines.forms import FORMS, THOUGHTS

OTHERS = {
    "glm45": "ling3 poolside_v1",
    "hermes": "granite4 qwen3_json",
    "qwen xml": "qwen3_coder qwen3_xml step3p5",
    "llama": "llama3_json llama4_json",
}
FORM_OF = {
    **{parser: form for form, parsers in OTHERS.items() for parser in parsers.split()},
    **{"deepseek_v31": "deepseek v3.1", "deepseek_v32": "deepseek v3.2", "deepseek_v41": "deepseek v4.1"},
    **{"ernie45": "ernie", "gemma4": "gemma", "gigachat3": "gigachat call", "granite-20b-fc": "granite 20b"},
    **{"hunyuan_a13b": "tool calls", "hy_v3": "hunyuan", "hy_v4": "hunyuan v4", "llama4_pythonic": "llama 4"},
    **{"minicpm5": "minicpm", "mistral": "mistral args", "muse_glimmer": "muse", "olmo3": "olmo", "plamo3": "plamo"},
    **{"pythonic": "python", "seed_oss": "seed", "xlam": "array"},
}
"""Of the other parsers, forms have their names."""
NOT_RUN = {"cohere_command3", "cohere_command4", "hf", "openai", "phi4_mini_json"}
"""Cohere's and gpt-oss's need packages or files, hf's form comes with the model, phi4's streams none."""
PARSERS = sorted({*ToolParserManager.list_registered()} - NOT_RUN)
WRONG = {"functiongemma", "jamba"}
"""Parsers that are wrong even if each piece has one token, of these forms with the tokens of the tiny model."""
THINKING = {
    "think": "deepseek_r1 deepseek_v4 deepseek_v41 glm45 glm47 granite_thinking_parser holo2 hy_v4 kimi_k2 ling3 mimo "
    "minicpmv nemotron_v3 qwen3 step3p5",
    "opened": "deepseek_r1 minimax_m2 minimax_m2_append_think qwen3 step3 step3p5",
    "none": "deepseek_v3",
    "ernie": "ernie45",
    "granite": "granite",
    "hunyuan": "hunyuan_a13b",
    "inkling": "inkling",
    "k2 horizon": "k2_horizon",
    "kimi k3": "kimi_k3",
    "minimax m3": "minimax_m3",
    "mistral": "mistral",
    "muse": "muse_glimmer",
    "plamo": "plamo3",
    "seed": "seed_oss",
}
REASONING = [(parser, form) for form, parsers in THINKING.items() for parser in parsers.split()]
MORE = ("<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]")  # what constructors look for


def form_of(parser: str) -> str:
    return FORM_OF.get(parser, parser.replace("_", " "))


def parser_of(tools: str | None = None, reasoning: str | None = None) -> Any:
    return ParserManager.get_parser(
        tool_parser_name=tools, reasoning_parser_name=reasoning, enable_auto_tools=tools is not None
    )


def parsed(parser: type[Any], text: str, size: int, with_tools: bool) -> tuple[Any, ...]:
    """Parse a stream in pieces of a number of tokens as vLLM's chat server does, and join what a client gets.

    Returns: the calls with their places, the reasoning, the content; the name of an error for both, if one is raised.
    """
    try:
        found = messages(parser, text, size, streamed.TOOLS if with_tools else None)
    except Exception as error:
        return [], type(error).__name__, type(error).__name__
    return joined(found)


def messages(parser: type[Any], text: str, size: int, tools: Any) -> list[DeltaMessage]:
    """Return what a parser makes of a stream in pieces of a number of tokens."""
    tokenizer = get_cached_tokenizer(streamed.tokenizer(text, MORE))
    ids, texts = streamed.tokens(tokenizer, text)
    choice: dict[str, Any] = {"tools": tools, "tool_choice": "auto"} if tools else {}
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "a"}], stream=True, skip_special_tokens=False, **choice
    )
    made = parser(tokenizer, request.tools)
    prompt = tokenizer.encode("Hello", add_special_tokens=False)
    pieces = streamed.grouped([*zip(ids, texts, strict=True), (tokenizer.eos_token_id, "")], size)
    found = [
        made.parse_delta(
            "".join(text for _, text in piece),
            [token for token, _ in piece],
            request,
            prompt_token_ids=prompt,
            finished=piece is pieces[-1],
        )
        for piece in pieces
    ]
    return [message for message in found if message is not None]


def joined(messages: Iterable[DeltaMessage]) -> tuple[Any, ...]:
    reasoning = ""
    content = ""
    calls = dict[int, list[str]]()
    for message in messages:
        reasoning += message.reasoning or ""
        content += message.content or ""
        for call in message.tool_calls:
            parts = calls.setdefault(call.index, ["", ""])
            parts[0] += (call.function and call.function.name) or ""
            parts[1] += (call.function and call.function.arguments) or ""
    values = streamed.values((name, arguments) for name, arguments in calls.values())
    return [(place, *call) for place, call in zip(calls, values, strict=True)], reasoning, content


def items(parser: type[Any], text: str, size: int) -> list[tuple[str, ...]]:
    """Parse a stream as vLLM's Responses API does; return its items' kinds, and their text or name and arguments."""
    processor = SimpleStreamingEventProcessor()
    for message in messages(parser, text, size, streamed.TOOLS):
        for part in split_in_order(split_delta, message):
            kind, call = processor.resolve_target_state(part)
            if kind.name != "NONE":
                if processor.needs_transition(kind, call):
                    processor.close_current()
                    processor.open(kind, call)
                processor.emit_delta(part, None)
    processor.close_current()
    return [
        (item.type, item.name, item.arguments) if item.type == "function_call" else (item.type, item.content[0].text)
        for item in processor.output_items
    ]


def differing(parser: type[Any], text: str, with_tools: bool) -> list[str]:
    return streamed.differing(lambda size: parsed(parser, text, size, with_tools))


def test_every_parser_of_vllms_is_compared_or_named():
    assert all(form_of(parser) in FORMS for parser in PARSERS)
    missing = {*ReasoningParserManager.list_registered()} - {parser for parser, _ in REASONING}
    assert missing == {
        *("cohere_command3", "cohere_command4", "hf", "openai_gptoss"),  # as above
        *("gemma4", "hy_v3"),  # reason only if their templates ask for it
        *("olmo3", "poolside_v1"),  # look for more tokens of their models
    }


@pytest.mark.parametrize("parser", PARSERS)
def test_calls_are_parsed_as_token_by_token(parser: str):
    text = FORMS[form_of(parser)]
    original = parser_of(tools=parser)
    single = parsed(original, text, 1, True)
    expected = [(place, *call) for place, call in enumerate(streamed.expected(form_of(parser)))]
    assert (single[0] == expected) == (parser not in WRONG)
    calls, _, content = differing(original, text, True)
    assert [calls, content] == streamed.documented("vLLM's tool calls", parser, 2), "tests/engines/streamed_parsers.md"
    wrapped = tool_streams.by_token(original)
    assert parsed(wrapped, text, 1, True) == single
    assert not any(differing(wrapped, text, True))


@pytest.mark.parametrize(("parser", "form"), REASONING)
def test_reasoning_is_parsed_as_token_by_token(parser: str, form: str):
    text = THOUGHTS[form]
    original = parser_of(reasoning=parser)
    single = parsed(original, text, 1, False)
    if parser not in ("minimax_m2_append_think", "hunyuan_a13b"):  # which leave reasoning in the content here
        assert ("four" in single[1], "four" in single[2]) == (form != "none", False)
    _, *alone = differing(original, text, False)
    is_listed = (parser, form) != ("deepseek_r1", "opened")  # whose other form is
    row = streamed.documented("vLLM's reasoning", parser, 2) if is_listed else ["", ""]
    assert alone == row, "tests/engines/streamed_parsers.md"
    wrapped = tool_streams.by_token(original)
    assert parsed(wrapped, text, 1, False) == single
    assert not any(differing(wrapped, text, False))


@pytest.mark.parametrize("parser", ["qwen3_coder", "granite4", "deepseek_v31"])
def test_items_of_the_responses_api_come_in_the_order_of_the_text(parser: str):
    """Text follows a call, and another call that text, in one piece or several."""
    text = FORMS[form_of(parser)]
    wrapped = tool_streams.by_token(parser_of(tools=parser, reasoning="qwen3"))
    text = f"<think>Hm.</think>{text}\nNow both.\n{text}"
    single = items(wrapped, text, 1)
    assert [kind for kind, *_ in single].count("function_call") >= 2
    for size in streamed.SIZES.values():
        assert items(wrapped, text, size) == single


def test_parsers_are_wrapped_once_and_stay_of_their_class(monkeypatch: pytest.MonkeyPatch):
    original = parser_of(tools="hermes")
    monkeypatch.setattr(ParserManager, "get_parser", ParserManager.get_parser)
    for module in (serving, streaming_events):
        monkeypatch.setattr(module, "split_delta", split_delta)
    tool_streams.install()
    tool_streams.install()
    found = parser_of(tools="hermes")
    assert found.parse_delta is not original.parse_delta
    assert len([base for base in found.__mro__ if "parse_delta" in vars(base)]) == 1 + len(
        [base for base in original.__mro__ if "parse_delta" in vars(base)]
    )
    assert found.tool_parser_cls is original.tool_parser_cls
    assert parser_of() is None
    assert serving.split_delta.__wrapped__ is split_delta
