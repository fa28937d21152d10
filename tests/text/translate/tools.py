"""Tokenizers of every kind, and texts and ids in which they differ."""

from __future__ import annotations

import json
from functools import cache
from itertools import permutations
from typing import Any

from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.loading import load_tokenizer
from specplug.text.translate.libraries import read_vocabulary
from specplug.text.translate.translator import Translator
from specplug.text.translate.vocabulary import Vocabulary

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@cache
def library(name: str) -> Any:
    """Return a tokenizer: one of specplug's known names, or one that is trained here."""
    if name == "byte_level":
        return _byte_level()
    if name == "byte_fallback":
        return _byte_fallback()
    if name == "tiktoken":
        return load_tokenizer("tekken").library._model
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


NAMES = ("tiny", "spm1", "spm3", "tekken", "byte_level", "byte_fallback")
PAIRS = tuple(permutations(NAMES, 2))


@cache
def vocabulary(name: str) -> Vocabulary:
    return read_vocabulary(library(name), name)


@cache
def translator(target: str, draft: str) -> Translator:
    return Translator(vocabulary(target), vocabulary(draft))


def own_encoding(name: str, text: str) -> list[int]:
    """Return what a tokenizer itself gives a text, with the tokens that it puts before it."""
    found = library(name)
    if isinstance(found, Tokenizer):
        return list(found.encode(text).ids)
    return [*vocabulary(name).prefix, *found.encode(text).tolist()]


_FRAGMENTS = (
    *(text[start : start + 40] for text in fingerprint_texts() for start in range(0, len(text), 40)),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "    ", "        ", "\x00", "\u2581", "\u2581\u2581", "\u3000"),
    *(
        "<s>",
        "</s>",
        "<unk>",
        "[INST]",
        "<|im_end|>",
        "<|end|>",
        "<think>",
        "<0x41>",
        "\ue000",
        "'s",
        "\u2019s",
        "e\u0301",
    ),
    *(
        "a" * 300,
        " " * 300,
        "天" * 300,
        "=" * 70,
        "0" * 20,
        "👨\u200d👩\u200d👧",
        "🇩🇪🇯🇵",
        "ไม่มีการเว้นวรรค",
        "क्षत्रिय",
        "٣٤٥",
    ),
)
TEXTS = st.lists(
    st.one_of(st.sampled_from(_FRAGMENTS), st.text(st.characters(codec="utf-8"), max_size=12)), max_size=8
).map("".join)
"""Texts of many scripts, code, runs of characters, and names of special tokens."""


@st.composite
def target_ids(draw: st.DrawFn, name: str) -> list[int]:
    """Return ids of any kind: texts', special ones, bytes that are no UTF-8, and arbitrary ones."""
    found, ids = vocabulary(name), list[int]()
    if draw(st.booleans()):
        ids += found.prefix
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(("text", "text", "control", "bytes", "any")))
        if kind == "text":
            ids += own_encoding(name, draw(TEXTS))[len(found.prefix) :]
        elif kind == "control" and found.controls:
            ids.append(draw(st.sampled_from(sorted(found.controls)[:24])))
        elif kind == "bytes":
            ids += [found.byte_ids[byte] for byte in draw(st.binary(max_size=5))]
        else:
            ids += draw(st.lists(st.integers(0, len(found.pieces) - 1), max_size=4))
    return ids
