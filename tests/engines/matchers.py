"""XGrammar's own matchers on the tiny model's tokenizer, and grammars to compare specplug's with."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from tests.engines.plain import tokenizer

KEYS = ("QZJXKVQWZKJ", "shipping_address_of_the_customer", "customer_identifier")
"""Of the first key most tokens are forced; the others can be cut into tokens in several ways."""

REGEX = "(x = [0-9]\n){4}y = 77"


@functools.cache
def schema() -> str:
    """Return a JSON schema with long keys."""
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    described = {"type": "object", "properties": dict.fromkeys(KEYS, number), "required": [*KEYS]}
    return json.dumps({**described, "additionalProperties": False})


@functools.cache
def _compiler() -> Any:
    import xgrammar

    vocabulary = tokenizer()
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(vocabulary, vocab_size=len(vocabulary)))


def matcher(regex: str | None = None, **how: Any) -> Any:
    """Return a new matcher of a regular expression, or of `schema`, compiled as `how` says."""
    import xgrammar

    if regex is not None:
        return xgrammar.GrammarMatcher(_compiler().compile_regex(regex))
    return xgrammar.GrammarMatcher(_compiler().compile_json_schema(schema(), any_whitespace=False, **how))


def allows(after: Any, text: Sequence[int]) -> bool:
    """Return whether a matcher accepts a text from the start."""
    after.reset()
    return all(after.accept_token(token) for token in text)


def legal(after: Any, text: Sequence[int]) -> set[int]:
    """Return the tokens that may follow a text; the reference follows the whole text again and tries each token."""
    found = set()
    assert allows(after, text)
    for token in range(len(tokenizer())):
        if after.accept_token(token):
            found.add(token)
            after.rollback(1)
    return found
