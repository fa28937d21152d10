"""A small draft model with SmolLM2's tokenizer, distilled on texts that SmolLM2 writes, as none is published.

    .venv-vllm/bin/python -m benchmarks.real_models.draft_model --out DIR [--minutes 60]

The target writes whole chats in vLLM, a user's message first, so that no prompts are needed, and none of the
benchmark's seen.  While it samples them its likeliest tokens are kept at each position.  The draft model is a Llama of
two layers, a third as wide, that begins with the principal components of the target's embeddings and learns these
distributions (DistillSpec, arXiv 2310.08461).  Half of the minutes go to writing and half to learning.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.models import folder

WIDTH = 192
LAYERS = 2
ROWS = 128
LENGTH = 256
"""Chats that are written at a time, and tokens of each."""
LIKELIEST = 32
"""Tokens whose probabilities are kept at each position."""
BATCH = 8
RATE = 2e-3
HELD_OUT = 32
"""Chats that are not learnt from."""


@dataclass(frozen=True)
class Texts:
    """Chats that the target wrote.

    Attributes:
        ids: [chats, LENGTH] int64.
        likeliest: [chats, positions, LIKELIEST] int64, the target's likeliest tokens for each of the last positions.
        probabilities: the same shape, float32, of all tokens together 1.
    """

    ids: Tensor
    likeliest: Tensor
    probabilities: Tensor

    def rows(self, which: Any) -> Texts:
        """Return some of the chats."""
        return Texts(self.ids[which], self.likeliest[which], self.probabilities[which])


def write(model: Path, start: list[int], minutes: float) -> Texts:
    """Let the target write chats from a beginning on, sampled, until the minutes are over; at least `ROWS`."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(model),
        dtype="bfloat16",
        max_model_len=LENGTH,
        max_num_seqs=ROWS,
        max_logprobs=LIKELIEST,
        kv_cache_memory_bytes=1 << 30,
        enforce_eager=True,
    )
    sampling = SamplingParams(
        top_k=LIKELIEST,
        max_tokens=LENGTH - len(start),
        ignore_eos=True,
        logprobs=LIKELIEST,
        flat_logprobs=True,
        detokenize=False,
    )
    began = time.monotonic()
    texts: list[list[int]] = []
    likeliest: list[Tensor] = []
    logarithms: list[Tensor] = []
    while not texts or time.monotonic() - began < 60 * minutes:
        for output in engine.generate([{"prompt_token_ids": start}] * ROWS, sampling, use_tqdm=False):
            [written] = output.outputs
            texts.append([*start, *written.token_ids])
            shape = (len(written.token_ids), LIKELIEST + 1)  # the sampled token comes first
            likeliest.append(torch.tensor(written.logprobs.token_ids).view(shape)[:, 1:])
            logarithms.append(torch.tensor(written.logprobs.logprobs, dtype=torch.float32).view(shape)[:, 1:])
        print(f"{len(texts)} chats, {(time.monotonic() - began) / 60:.1f} of {minutes:.1f} minutes", flush=True)
    return Texts(torch.tensor(texts), torch.stack(likeliest), torch.stack(logarithms).softmax(-1))


def make(target: Any) -> LlamaForCausalLM:
    """Return a new draft model, with the principal components of the target's embeddings."""
    own = target.config
    config = LlamaConfig(
        vocab_size=own.vocab_size,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 64,
        num_key_value_heads=WIDTH // 64,
        max_position_embeddings=own.max_position_embeddings,
        rope_parameters=own.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        weights = target.get_input_embeddings().weight
        left, scale, _ = torch.svd_lowrank(weights - weights.mean(0), q=WIDTH, niter=4)
        model.get_input_embeddings().weight.copy_(left * scale / scale.mean() * math.sqrt(len(left)) * 0.05)
    return model


def loss_of(draft: Any, texts: Texts) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy to the target's probabilities, and the share of its likeliest tokens that it shares."""
    start = texts.ids.shape[1] - texts.likeliest.shape[1] - 1
    logits = draft(texts.ids[:, :-1], use_cache=False).logits[:, start:].float()
    known = logits.gather(-1, texts.likeliest) - logits.logsumexp(-1, keepdim=True)
    same = (logits.argmax(-1) == texts.likeliest[..., 0]).float().mean()
    return -(texts.probabilities * known).sum(-1).mean(), same


def learn(draft: Any, texts: Texts, minutes: float) -> None:
    """Train in place until the minutes are over; the learning rate falls to 0."""
    optimizer = torch.optim.AdamW(draft.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    draft.train()
    step = 0
    while (progress := (time.monotonic() - began) / 60 / minutes) < 1:
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 30) * (1 - progress)
        with torch.autocast("cpu", torch.bfloat16):
            loss, same = loss_of(draft, texts.rows(torch.randint(len(texts.ids), (BATCH,))))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {same.item():.0%} alike, {progress:.0%} done", flush=True)
    draft.eval()


def main() -> None:
    """Write texts, learn from them, and save the draft model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="smollm2, or the folder of another Llama")
    parser.add_argument("--out", type=Path, required=True, help="folder of the draft model")
    parser.add_argument("--minutes", type=float, default=60.0, help="of both halves together (default: 60)")
    options = parser.parse_args()
    torch.manual_seed(0)
    path = folder(options.model) or Path(options.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    start = tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)
    texts = write(path, start, options.minutes / 2)
    draft = make(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    learn(draft, texts.rows(slice(HELD_OUT, None)), options.minutes / 2)
    with torch.no_grad():
        loss, same = loss_of(draft, texts.rows(slice(0, HELD_OUT)))
    print(f"held-out chats: loss {loss.item():.3f}, {same.item():.0%} of the target's likeliest tokens")
    draft.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
