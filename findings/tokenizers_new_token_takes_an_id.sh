#!/usr/bin/env bash
# add_tokens of Hugging Face's tokenizers gives a new token an id that another token has, if the vocabulary has gaps.
# One would expect: a new id is above all ids in use, or an error.
# What happens: new ids count on from the *number* of tokens.  In a vocabulary from which tokens were taken out, or whose
# ids were never dense, that number is the id of a token that is still there.  From then on the two share it, encode()
# gives it for either, and decode() knows the new one only: texts that never held the new token come back changed.
# add_special_tokens does the same, so decode() with skip_special_tokens, its default, drops the old token's text.
# Seen with tokenizers 0.23.3.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = {"red": 0, "green": 1, "blue": 3}  # 2 has been taken out
TEXT = "red green blue"


def round_trip(add):
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="red"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    add(tokenizer)
    return tokenizer.token_to_id("<new>"), tokenizer.decode(tokenizer.encode(TEXT).ids)


print(f"tokenizers {tokenizers.__version__}, {VOCABULARY}: {TEXT!r} after encode and decode")
ADDED = {
    "nothing": (lambda tokenizer: None, (None, TEXT)),
    "add_tokens": (lambda tokenizer: tokenizer.add_tokens(["<new>"]), (3, "red green <new>")),
    "add_special_tokens": (lambda tokenizer: tokenizer.add_special_tokens(["<new>"]), (3, "red green")),
}
for name, (add, expected) in ADDED.items():
    found = round_trip(add)
    print(f"  {name}: the new token's id {found[0]}, text {found[1]!r}")
    assert found == expected, "the behaviour has changed"
PYTHON
