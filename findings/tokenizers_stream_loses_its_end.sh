#!/usr/bin/env bash
# A DecodeStream of Hugging Face's tokenizers never gives out an end that is, or looks like, half a character.
# One would expect: the pieces of a stream add up to decode() of the same ids, the last piece being what was held back.
# What happens: step() returns None while the text ends in U+FFFD, because the next token may complete a character, and
# there is no call that ends the stream.  So decode() shows a replacement character where an answer was cut within a
# character, and the stream shows nothing; and a genuine U+FFFD is missing if it is the last of a text.
# Seen with tokenizers 0.23.3.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
of_bytes = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), vocab_size=256, show_progress=False)
tokenizer.train_from_iterator(["-"], of_bytes)

ANSWERS = {  # name: ids, decoded, streamed
    "whole": (tokenizer.encode("née").ids, "née", "née"),
    "cut within é": (tokenizer.encode("né").ids[:-1], "n\ufffd", "n"),
    "U+FFFD within": (tokenizer.encode("a\ufffdb").ids, "a\ufffdb", "a\ufffdb"),
    "U+FFFD at the end": (tokenizer.encode("a\ufffd").ids, "a\ufffd", "a"),
}
public = [name for name in dir(decoders.DecodeStream) if not name.startswith("_")]
print(f"tokenizers {tokenizers.__version__}; calls of a DecodeStream: {', '.join(public)}")
for name, (ids, *expected) in ANSWERS.items():
    stream = decoders.DecodeStream()
    found = [tokenizer.decode(ids), "".join(stream.step(tokenizer, token) or "" for token in ids)]
    print(f"  {name}: decoded {found[0]!r}, streamed {found[1]!r}")
    assert found == expected, "the behaviour has changed"
assert public == ["step"], "the behaviour has changed"
PYTHON
