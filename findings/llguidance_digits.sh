#!/usr/bin/env bash
# llguidance: \d is any script's digit in a regular expression, and 0 to 9 in a JSON Schema's pattern.
# One would expect: the same class in both.
# What happens: a grammar from the regex \d+ admits Arabic-Indic and all other decimal digits, as Rust's regex does,
# while {"pattern": "^\\d+$"} admits ASCII digits only, as ECMA-262 does.  So moving a format from a regex to a schema
# changes which answers are possible.
# Seen with llguidance 1.9.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "llguidance==1.9.1" "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import json

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(initial_alphabet=alphabet, vocab_size=257, special_tokens=["<end>"], show_progress=False)
tokenizer.train_from_iterator(["-"], trainer)
of_bytes = LLTokenizer(tokenizer.to_str(), eos_token=0)

GRAMMARS = {
    r"regex \d+": LLMatcher.grammar_from_regex(r"\d+"),
    r"regex [0-9]+": LLMatcher.grammar_from_regex("[0-9]+"),
    r"schema with pattern ^\d+$": LLMatcher.grammar_from_json_schema(json.dumps({"pattern": r"^\d+$"})),
}
RESULTS = {r"regex \d+": [True, True], r"regex [0-9]+": [True, False], r"schema with pattern ^\d+$": [True, False]}
print(f"llguidance {importlib.metadata.version('llguidance')}")
for name, grammar in GRAMMARS.items():
    admitted = []
    for text in ("2026", "\u0662\u0660\u0662\u0666"):
        matcher, ids = LLMatcher(of_bytes, grammar), tokenizer.encode(f'"{text}"' if "schema" in name else text).ids
        admitted.append(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
        print(f"  {name}: {text} is {'admitted' if admitted[-1] else 'refused'}")
    assert admitted == RESULTS[name], "the behaviour has changed"
PYTHON
