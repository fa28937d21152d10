"""Tokenizers of every kind, and texts and ids in which they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from itertools import permutations
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from specplug.text.fingerprint import fingerprint_texts
from specplug.text.tokenizers import load_tokenizer
from specplug.text.translate.libraries import read_vocabulary
from specplug.text.translate.tables import TokenLists
from specplug.text.translate.vocabulary import Vocabulary
from tests import real_models

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


REAL = ("smollm2", "gemma3")
"""Tokenizers of models that `benchmarks.models` obtains."""


@cache
def library(name: str) -> Any:
    """Return a tokenizer: one of specplug's known names, one of `REAL`, or one that is trained here."""
    if name in _TRAINED:
        return _TRAINED[name]()
    if name == "tiktoken":
        return load_tokenizer("tekken").library._model
    if name in REAL:
        return load_tokenizer(real_models.path(name))
    return load_tokenizer(name)


def _byte_level() -> Tokenizer:
    """Return GPT-4's way of splitting, composed characters, BOS, a chat's tokens and runs of spaces as added tokens."""
    found = Tokenizer(models.BPE())
    found.normalizer = normalizers.NFC()
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_GPT4), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    found.decoder = decoders.ByteLevel()
    specials = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator(list(fingerprint_texts()) * 2, trainer)
    found.add_tokens(["<think>", "    ", "        "])
    found.post_processor = processors.TemplateProcessing("<|begin_of_text|> $A", None, [("<|begin_of_text|>", 0)])
    return found


def _byte_fallback() -> Tokenizer:
    """Return a SentencePiece vocabulary as `tokenizers` holds Llama's, with a space before the first text alone."""
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    found = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    found.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1100, special_tokens=["<unk>", "<s>", "</s>", *spelled], limit_alphabet=90, show_progress=False
    )
    found.train_from_iterator([word for text in fingerprint_texts() for word in text.split()], trainer)
    content = json.loads(found.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(content))


def _without_added(found: Tokenizer) -> Tokenizer:
    """Return one that has only its special tokens beside its vocabulary."""
    content = json.loads(found.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["special"]]
    return Tokenizer.from_str(json.dumps(content))


def _spaced() -> Tokenizer:
    """Return one that puts a space before text, and before that after each special token, which decoding keeps."""
    found = _without_added(_byte_level())
    found.post_processor = processors.Sequence([])
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return found


def _added() -> Tokenizer:
    """Return one with added tokens that are text: a tag, a name within a word, and several words."""
    found = _byte_level()
    found.add_tokens(["<h1>", "</tool_call>", "as well as", "tokeniz", "\n\n\n"])
    return found


def _gaps() -> Tokenizer:
    """Return a byte-level vocabulary without the bytes that no text has which it was trained on, as SmolLM's."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False)
    texts = [text for text in fingerprint_texts() if text.isascii() and text.isprintable()]
    found.train_from_iterator([*texts * 3, "\n\n\n  \té 天地"], trainer)
    return found


def _no_fallback() -> Tokenizer:
    """Return a SentencePiece vocabulary of Latin letters alone, whose unknown token stands for all others."""
    found = Tokenizer(models.Unigram())
    found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    found.decoder = decoders.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    found.train_from_iterator([text for text in fingerprint_texts() if text.isascii()], trainer)
    return found


def _normalising() -> Tokenizer:
    """Return one that lower-cases, decomposes, strips accents and ends, and joins spaces, with tokens for all bytes."""
    found = _without_added(_byte_level())
    steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()]
    found.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    return found


_TRAINED = {
    "byte_level": _byte_level,
    "byte_fallback": _byte_fallback,
    "spaced": _spaced,
    "added": _added,
    "gaps": _gaps,
    "no_fallback": _no_fallback,
    "normalising": _normalising,
}

NAMES = ("tiny", "spm1", "spm3", "tekken", "byte_level", "byte_fallback", "spaced", "added")
"""Tokenizers that spell every text."""

PAIRS = tuple(permutations(NAMES, 2))


@cache
def vocabulary(name: str) -> Vocabulary:
    return read_vocabulary(library(name), name)


def own_encoding(name: str, text: str) -> list[int]:
    """Return what a tokenizer itself gives a text, with the tokens that it puts before it."""
    found = library(name)
    if isinstance(found, Tokenizer):
        return list(found.encode(text).ids)
    return [*vocabulary(name).prefix, *found.encode(text).tolist()]


def bytes_of(vocabulary: Vocabulary, tokens: Iterable[int]) -> bytes:
    """Return the bytes of ordinary tokens."""
    pieces = [vocabulary.pieces[token] for token in tokens]
    assert all(pieces)
    return b"".join(pieces)


def ids_of(table: TokenLists, index: int) -> list[int]:
    """Return the list of an id that has one."""
    start = int(table.starts[index])
    found: list[int] = table.values[start : start + int(table.counts[index])].tolist()
    return found
