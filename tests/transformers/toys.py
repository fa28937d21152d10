"""Tiny random models, and proposers that behave well or badly on purpose."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from specplug.host import HostProposer
from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec, VerifierSpec, hookimpl
from specplug.types.caps import Distribution, ProposerCaps, VerifierCaps
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch
from tests.mutants import LOSSY_MUTANTS

VOCAB = 96
EOS = 1
WINDOW = 16
CONTEXT = 192

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,  # large enough for texts that vary, small enough for texts that repeat themselves
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 2,
}
_MIXED = ["sliding_attention", "full_attention"]

BUILDERS: dict[str, Callable[[], torch.nn.Module]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=EOS,
            pad_token_id=2,
        )
    ),
    "sliding mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW)),
    "mixed qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=WINDOW, layer_types=_MIXED)
    ),
    "mixed gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=_MIXED, tie_word_embeddings=False)
    ),
    "convolved lfm2": lambda: Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"])),
}
ATTENTION = [
    (name, kind) for name in BUILDERS for kind in ("sdpa", "eager") if (name, kind) != ("mixed gemma2", "sdpa")
]
"""Models with the attention that they take: transformers has no "sdpa" for Gemma 2's capped logits from 5.24 on."""


def build_model(name: str, attention: str = "sdpa") -> torch.nn.Module:
    """Return a float32 model with the same weights every time."""
    torch.manual_seed(7)
    model = BUILDERS[name]().eval()
    model.set_attn_implementation(attention)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = 2
    return model


def one_layer(vocab_size: int, seed: int, context: int, **config: bool) -> LlamaForCausalLM:
    """Return a model of hidden size 16, whose distribution is far from uniform and far from certain."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": context, "vocab_size": vocab_size}
    return LlamaForCausalLM(LlamaConfig(**shape, initializer_range=0.35, **config)).eval()


def prompts(count: int, *, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Return prompts of different lengths that repeat parts of themselves."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        part = torch.randint(3, VOCAB, (4 + index % 5,), generator=generator).tolist()
        made.append((part * 20)[: 1 + (index * 11 + 6) % longest])
    return made


class Garbage(Proposer):
    """Drafts random ids, as many as it may."""

    def __init__(self, context: PluginContext) -> None:
        self._vocab, self._stream = context.vocab_size, torch.Generator().manual_seed(5)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        ids = torch.randint(self._vocab, tuple(draft.token_ids.shape), generator=self._stream)
        draft.token_ids.copy_(ids)
        draft.lengths.fill_(draft.draft_length)
        draft.confidence.fill_(0.9)
        draft.source.zero_()
        draft.shorten(limits)


class Oracle(HostProposer):
    """Drafts the answer that `answers` has for the request id."""

    answers: ClassVar[dict[str, list[int]]] = {}

    def draft(self, tokens, limit, request):
        known = self.answers.get(request.request_id, [])
        done = len(tokens) - request.prompt_length
        return [int(token) for token in known[done : done + limit]]


class Foretold(HostProposer):
    """Drafts the answer that `answers` has for the prompt; if `wrong`, every second token of a draft is another."""

    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    wrong: ClassVar[bool] = False

    def draft(self, tokens, limit, request):
        known = self.answers.get(tuple(int(token) for token in tokens[: request.prompt_length]), [])
        done = len(tokens) - request.prompt_length
        return [(token + self.wrong * (place % 2)) % VOCAB for place, token in enumerate(known[done : done + limit])]


class Hostile(BaseException):
    """An exception whose own methods raise, too."""

    def __str__(self):
        raise RuntimeError("no text today")

    __repr__ = __str__


class Raising(HostProposer):
    def draft(self, tokens, limit, request):
        raise Hostile


class Hanging(HostProposer):
    def draft(self, tokens, limit, request):
        time.sleep(0.3)
        return [5] * limit


class Impossible(HostProposer):
    """Drafts ids outside the vocabulary."""

    def draft(self, tokens, limit, request):
        return [VOCAB + 3] * limit


class RowWriter(Proposer):
    """Writes its draft row by row with `Draft.set_row`, on its own thread."""

    def __init__(self, context: PluginContext) -> None: ...

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, limit in enumerate(limits.tolist()):
            draft.set_row(row, [7] * limit, 0.5)


class Recorder(Garbage):
    """Records everything that it receives."""

    newest: ClassVar[Recorder]

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.events: list[Event] = []
        self.ingested: list[dict[str, int]] = []
        self.resets: list[tuple[int, ...]] = []
        self.grammars: list[list[bool]] = []
        self.texts: dict[str, list[int]] = {}
        self.after_stop = 0
        Recorder.newest = self

    def ingest(self, batch: EngineBatch) -> None:
        self.ingested.append(dict(zip(batch.request_ids or (), batch.num_new.tolist(), strict=True)))
        self.resets.append(batch.reset_slots)
        self.grammars.append(batch.grammar.tolist())
        for name, row, length in zip(batch.request_ids or (), batch.rows, batch.lengths, strict=True):
            self.texts[name] = batch.tokens[row, :length].tolist()

    def observe(self, batch, draft, verdict) -> None:
        self.after_stop += int(verdict.after_stop.sum())

    def on_event(self, event: Event) -> None:
        self.events.append(event)


_HOST = ProposerCaps(needs_host=True)
_WRONG = VerifierCaps(lossless=True, distributions=(Distribution.LOGITS, Distribution.PROBS))
_TOYS = {
    "garbage": (Garbage, ProposerCaps()),
    "oracle": (Oracle, _HOST),
    "foretold": (Foretold, _HOST),
    "raising": (Raising, _HOST),
    "hanging": (Hanging, _HOST),
    "impossible": (Impossible, _HOST),
    "row writer": (RowWriter, _HOST),
    "recorder": (Recorder, ProposerCaps(learns=True)),
}


class ToyPlugin:
    """Registers the toys, and the planted wrong verifiers by name."""

    def __init__(self, more: Sequence[ProposerSpec] = ()) -> None:
        self._more = more

    @hookimpl
    def specplug_register_proposers(self, register: Callable[[ProposerSpec], None]) -> None:
        for name, (factory, caps) in _TOYS.items():
            register(ProposerSpec(name=name, factory=factory, summary="a toy", caps=caps))
        for spec in self._more:
            register(spec)

    @hookimpl
    def specplug_register_verifiers(self, register: Callable[[VerifierSpec], None]) -> None:
        for name, mutant in LOSSY_MUTANTS.items():
            register(VerifierSpec(name=name, factory=mutant, summary="wrong on purpose", caps=_WRONG))


def testkit(name: str) -> ProposerSpec:
    """Return a proposer of the engines' tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "engines" / "plugins"))
        return importlib.import_module("specplug_testkit.plugin").spec_of(name)


def make_registry(more: Sequence[ProposerSpec] = ()) -> Registry:
    """Return a registry of the installed plug-ins and the toys."""
    registry = Registry.discover()
    registry.add(ToyPlugin(more), Owner("toys", "tests", "0"))
    assert not registry.load_errors
    return registry
