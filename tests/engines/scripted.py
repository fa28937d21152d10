"""A tiny Llama that speaks scripts: reasoning, then a tool call in Hermes' form, for the engines' own parsers.

Its vocabulary has a token of its own for every piece of a script, and attention and MLP are zero, so that each token
decides which one follows.  At the beginning all scripts are likely, in their order; a grammar forbids the first ones.
After the reasoning the arguments alone are second, which a grammar may ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.engines.launch import TINY

AUTO = (
    "<think>",
    "\nThe user wants ",
    "to know about the ",
    "weather in Oslo.\n",
    *("First ", "comes ", "the city, ", "then ", "the unit, ", "which is ", "C.\n"),
    "</think>",
    "\n\n<tool",
    '_call>\n{"name": "wea',
    'ther", "arguments": {"ci',
    'ty": "Oslo", "un',
    'it": "C"}}\n</tool_ca',
    "ll>",
)
REQUIRED = ('[{"na', 'me": "weather", "param', 'eters": {"city": "Os', 'lo", "unit"', ': "C"}}', "]")
ARGUMENTS = ('{"cit', 'y": "Osl', 'o", "uni', 't": "C', '"}')
SCRIPTS = (AUTO, REQUIRED, ARGUMENTS)
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}<|answer|>"
HIDDEN = 64


def save(folder: Path) -> str:
    """Save model and tokenizer; return the folder."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    pieces = [piece for script in SCRIPTS for piece in script]
    assert len(set(pieces)) == len(pieces)
    tokenizer.add_tokens(pieces)
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    teach(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def teach(model: Any, tokenizer: Any) -> None:
    """Make the last token decide the next one; the first coordinate stands for every token outside the scripts."""
    embeddings = model.model.embed_tokens.weight.data
    head = model.lm_head.weight.data
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    embeddings.zero_()
    embeddings[:, 0] = 1
    head.mul_(0.1)
    for state, (token, following) in enumerate(transitions(tokenizer), start=1):
        embeddings[token] = 0
        embeddings[token, state] = 1
        head[following, state] += 4
        if token == tokenizer.convert_tokens_to_ids("</think>"):
            head[tokenizer.convert_tokens_to_ids(ARGUMENTS[0]), state] += 3
    for place, script in enumerate(SCRIPTS):
        head[tokenizer.convert_tokens_to_ids(script[0]), 0] += 4 - place


def transitions(tokenizer: Any) -> Iterator[tuple[int, int]]:
    """Yield each token of the scripts with the one after it; the end follows the last one."""
    for script in SCRIPTS:
        ids = [*tokenizer.convert_tokens_to_ids(list(script)), tokenizer.eos_token_id]
        yield from itertools.pairwise(ids)
