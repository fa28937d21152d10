"""What the grammar backends forbid inside JSON strings, as docs/structured-output.md tells it."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
import xgrammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
BYTES = [bytes([value]) for value in range(256)]
END = 256
OTHER_END = 257
VOCABULARY = [*BYTES, b"<|end|>", b"<|im_end|>"]


class ByteTokenizer:
    """A tokenizer in the form that llguidance wraps."""

    eos_token_id = END
    bos_token_id = None
    unk_token_id = None
    tokens = VOCABULARY
    special_token_ids = (END, OTHER_END)

    def __call__(self, text: Any) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def xgrammar_takes(tokens: list[int]) -> bool:
    info = xgrammar.TokenizerInfo(VOCABULARY, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(
        json.dumps(SCHEMA), any_whitespace=False, separators=(",", ":")
    )
    matcher = xgrammar.GrammarMatcher(compiled)
    return all(matcher.accept_token(token) for token in tokens)


def llguidance_takes(tokens: list[int]) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, defaults={"whitespace_flexible": False})
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()))
    return llguidance.LLMatcher(tokenizer, grammar).validate_tokens(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("inside", "by_llguidance", "by_xgrammar"),
    [
        (list("é".encode()), True, True),
        (list(rb"\n\"\u000a"), True, True),
        (list(rb"\u00e9"), False, True),
        (list(rb"\ud83d\ude00"), False, True),
        (list(rb"\/"), False, True),
        ([0x7F], False, True),
        ([OTHER_END], False, True),
    ],
)
def test_what_strings_may_hold(inside: list[int], by_llguidance: bool, by_xgrammar: bool) -> None:
    tokens = [*b'{"a":"', *inside, *b'"}']
    assert (llguidance_takes(tokens), xgrammar_takes(tokens)) == (by_llguidance, by_xgrammar)
