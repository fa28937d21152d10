"""The proposer `crosstok` with the shipped models, built as an engine with the model "tiny" would."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specplug.draft_model import model
from specplug.draft_model.pairing import TokenizerPair
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.testing.driver import Driver
from specplug.text.tokenizers import load_tokenizer
from specplug.text.translate.libraries import byte_alphabet
from specplug.tools.demo import model_path
from specplug.types.step import EngineBatch
from specplug_crosstok import loading, plugin
from specplug_crosstok.proposer import CrossTok

VOCAB = 2048
SAME, OTHER = "tiny-draft", "tiny-draft-other"


def registered() -> ProposerSpec:
    registry = Registry()
    registry.add(plugin, Owner("crosstok", "specplug", "test"))
    return registry.get(ProposerSpec, "crosstok")


@functools.cache
def tokenizer(name: str = "tiny") -> Any:
    return load_tokenizer(str(model_path(name))).library


WEIGHTS, PAIR, TOKENIZER = map(functools.cache, (model._load, TokenizerPair.of, load_tokenizer))


def read_once(patch: pytest.MonkeyPatch) -> None:
    """Let draft models and tokenizers be read once for all tests."""
    patch.setattr(model, "_load", WEIGHTS)
    patch.setattr(TokenizerPair, "of", PAIR)
    patch.setattr(loading, "load_tokenizer", TOKENIZER)


def build(context: PluginContext, *, on_host: bool = True) -> CrossTok:
    """Build the proposer for a target whose tokenizer is that of "tiny"."""
    with pytest.MonkeyPatch.context() as patch:
        read_once(patch)
        return CrossTok(replace(context, target_tokenizer=tokenizer()), on_host=on_host)


CODE = "def add(first, second):\n    return first + second\n\n\ndef sub("


def options(draft: str, **more: object) -> Mapping[str, object]:
    return {"model": str(model_path(draft)), "max_ms": None, **more}


def write_partial(folder: Path, name: str) -> Path:
    """Write a shipped model's tokenizer without tokens for bytes above 0xA0 alone, and with a tag as an added token.

    It lower-cases text if it is the one of `OTHER`.
    """
    content = json.loads((model_path(name) / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, letters = content["model"]["vocab"], byte_alphabet()
    for letter, byte in letters.items():
        if byte > 0xA0:
            vocab[f"\u2603{byte}"] = vocab.pop(letter)
    merges = [pair for pair in content["model"]["merges"] if all(part in vocab for part in [*pair, "".join(pair)])]
    content["model"]["merges"] = merges
    tag = {"id": len(vocab), "content": "<h1>", "special": False, "normalized": False}
    content["added_tokens"].append({"single_word": False, "lstrip": False, "rstrip": False, **tag})
    content["normalizer"] = {"type": "Lowercase"} if name == OTHER else None
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    for file in ("tokenizer_config.json", "config.json", "generation_config.json", "model.safetensors"):
        if not (folder / file).exists():
            shutil.copy(model_path(name) / file, folder / file)
    return folder


def encoded(text: str) -> list[int]:
    found: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return found


class Warm(Driver):
    """Passes batches whose rows are sampled, at temperatures of their own, except for every third."""

    def batch(self, order: Any = None) -> EngineBatch:
        batch = super().batch(order)
        return replace(batch, temperature=torch.where(batch.slots % 3 == 2, 0.0, 0.5 + batch.slots / 4))


FORMS = {
    "host": replace(registered(), factory=build),
    "device": replace(
        registered(), factory=functools.partial(build, on_host=False), caps=registered().caps_for("cuda")
    ),
}
"""The proposer for batches in host memory, and for those on a GPU, which runs on any device."""

TEXTS = (encoded(CODE), encoded("Ünïcödé 天地 👍 is text"), encoded("x"))
