#!/usr/bin/env bash
# SentencePiece: two different texts have the same ids, even without normalisation and with byte fallback.
# One would expect: with normalization_rule_name="identity", remove_extra_whitespaces=False and byte_fallback=True every
# text survives encode() and decode().  No-break spaces, newlines and emoji do, by their bytes.
# What happens: U+2581, the "▁" that stands for a space in pieces, is not escaped in texts.  "a▁b" is encoded as "a b"
# is, so it comes back as "a b", and whatever keys texts by their ids, as caches of prompts do, holds them for one.
# Texts about tokenizers, and block elements such as "▁▂▃" in charts, hold that character.
# Seen with sentencepiece 0.2.3.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "sentencepiece==0.2.3"
"$work/venv/bin/python" - <<'PYTHON'
import io

import sentencepiece

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["a b"] * 20),
    model_writer=model,
    model_type="bpe",
    vocab_size=300,
    hard_vocab_limit=False,
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    minloglevel=2,
)
tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

RESULTS = {"a b": "a b", "a\u2581b": "a b", "a\u00a0b": "a\u00a0b", "a\nb": "a\nb", "a\U0001f600b": "a\U0001f600b"}
print(f"sentencepiece {sentencepiece.__version__}")
for text, expected in RESULTS.items():
    ids = tokenizer.encode(text)
    print(f"  {text!a}: ids {ids}, decoded {tokenizer.decode(ids)!a}")
    assert tokenizer.decode(ids) == expected, "the behaviour has changed"
assert tokenizer.encode("a\u2581b") == tokenizer.encode("a b"), "the behaviour has changed"
PYTHON
