"""A tiny random model over letters, and plug-ins with planted mistakes, for audits by the command line."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import specplug.plugins.builtin
import specplug_batch.plugin
import specplug_fixed.plugin
import specplug_ngram.plugin
import specplug_transformers.plugin
from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.registry import Registry
from specplug.plugins.specs import ProposerSpec, VerifierSpec
from specplug.types.caps import Distribution, ProposerCaps, VerifierCaps
from specplug.types.step import Draft, EngineBatch
from tests.mutants import LOSSY_MUTANTS
from tests.plugins.planted import registry_of
from tests.tools.cli.tools import invoke

LETTERS = "abcdefghijklmnopqrst"
END = "."
VOCAB = len(LETTERS) + 2


def save(folder: Path) -> Path:
    """Save the model with its tokenizer, and prompts beside it; return the prompts' file."""
    words = Tokenizer(models.WordLevel({letter: place for place, letter in enumerate(LETTERS + END + "?")}, "?"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token=END).save_pretrained(folder)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=VOCAB - 2,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    draw = random.Random(3)
    prompts = ["".join(draw.choices(LETTERS, k=6 + 2 * number)) * 2 for number in range(8)]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return file


class Drawn(Proposer):
    """Draws letters independently, the first ones more often than the last, and states the distribution."""

    def __init__(self, context: PluginContext) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self._logits = torch.linspace(3, -3, context.vocab_size)

    def stated(self) -> torch.Tensor:
        """Return the logits that it states."""
        return self._logits

    def propose(self, batch: EngineBatch, limits: torch.Tensor, draft: Draft) -> None:
        rows, length = draft.token_ids.shape
        probs = self._logits.softmax(-1).expand(rows, -1)
        if length:
            draft.token_ids.copy_(probs.multinomial(length, replacement=True, generator=self._generator))
        assert draft.draft_probs is not None
        draft.draft_probs.copy_(self.stated().softmax(-1).expand_as(draft.draft_probs))
        draft.lengths.fill_(draft.draft_length)
        draft.confidence.fill_(0.5)
        draft.source.zero_()
        draft.shorten(limits)


class Liar(Drawn):
    """States the distribution turned around."""

    def stated(self) -> torch.Tensor:
        return self._logits.flip(0)


@functools.cache
def registry() -> Registry:
    """Return a registry of built-ins and toys: the proposers, and the wrong verifiers as if they were lossless."""
    drawn = ProposerCaps(distribution=Distribution.PROBS)
    lossless = VerifierCaps(lossless=True, distributions=(Distribution.LOGITS, Distribution.PROBS))
    return registry_of(
        *(specplug.plugins.builtin, specplug_batch.plugin, specplug_fixed.plugin, specplug_ngram.plugin),
        specplug_transformers.plugin,
        proposers=[
            ProposerSpec(name=name, factory=factory, summary="a toy", caps=drawn)
            for name, factory in (("drawn", Drawn), ("liar", Liar))
        ],
        verifiers=[
            VerifierSpec(name=name, factory=mutant, summary="wrong on purpose", caps=lossless)
            for name, mutant in LOSSY_MUTANTS.items()
        ],
    )


def audited(file: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Audit the toy by the command line; return the exit code and the report."""
    result = invoke("audit", file.parent, "--prompts", file, "--max-tokens", 24, "--threads", 1, "--json", *arguments)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def statuses(report: dict[str, Any]) -> dict[str, str]:
    """Return the status of each check."""
    return {finding["check"]: finding["status"] for finding in report["findings"]}
