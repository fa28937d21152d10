"""Byte-level BPE tokenizers for the tiny models, trained on the standard library's own text."""

from __future__ import annotations

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specplug.tools.demo.sources import definitions, source_files
from specplug.tools.demo.tasks import END, KINDS, MARKERS, make_tasks

# A name with its underscores is one piece, digits stand alone, white space joins what follows.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""Messages one below the other: the models were trained on no conversations, and continue the last message."""

PIECES = r" ?[\p{L}_]+| ?\p{N}| ?[^\s\p{L}\p{N}_]+|\s+(?!\S)|\s+"


def train_tokenizer(vocab_size: int, *, other: bool = False) -> PreTrainedTokenizerFast:
    """Train a tokenizer; `END` is id 0 and end of sequence, the other markers follow.

    Args:
        vocab_size: number of tokens, the 256 bytes and the markers included.
        other: split the text GPT-2's way and learn from documentation only, so that the result
            disagrees with the usual tokenizer almost everywhere.

    """
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=other)
    if other:
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_documentation() if other else _mixed(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )


def _documentation() -> list[str]:
    files = source_files("train")
    return [text for file in files for item in definitions(file) for text in item.paragraphs]


def _mixed() -> list[str]:
    """Return source text and the tasks' own text, so that their fixed phrases are few tokens."""
    files = random.Random(0).sample(source_files("train"), k=200)
    tasks = [task for kind in KINDS for task in make_tasks(kind, "train", 1000, seed=-1)]
    return [file.text for file in files] + [task.prompt + task.answer for task in tasks]
