"""Acceptance of drafts from a part of the vocabulary, beside the most that this part can reach.

The draft model has the target's tokenizer, and its ids are masked until the two vocabularies have only a share in
common, by either of two orders: the rarest ids of the training tasks first, or the latest merges of the tokenizer
first.  Single bytes and special tokens stay.  Then "tli" draws from the common ids alone, q', and a token drawn there
is accepted with probability sum(min(p, q')), p being the target's distribution after the same context.  That sum is
computed by plain forward passes over the outputs, at every position whose draft token was decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import specplug.plugins.builtin
import specplug_crosstok.plugin
import specplug_fixed.plugin
from benchmarks.cross_engine import GAMMA, model, requests_of, serving, settings, tokenizer
from specplug.demo.tasks import KINDS, MARKERS, make_tasks
from specplug.draft_model.pairing import Pair
from specplug.plugins.hooks import hookimpl
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.text.translate.intersection import Intersection
from specplug.text.translate.translator import Translator
from specplug_crosstok.proposer import CrossTok

SHARES = (90, 80, 70)
ORDERS = ("rarest", "latest merges")
_TRAINING_TASKS = 500


def kept_ids(order: str, percent: int) -> Tensor:
    """Return [V] bool, true for the common ids."""
    vocabulary = tokenizer().get_vocab()
    special = {vocabulary[marker] for marker in MARKERS}
    always = special | {token for piece, token in vocabulary.items() if len(piece) == 1}
    worth: Callable[[int], int] = _training_counts().__getitem__ if order == "rarest" else int.__neg__
    others = sorted(set(vocabulary.values()) - always, key=lambda token: (worth(token), -token))
    kept = torch.ones(len(vocabulary), dtype=torch.bool)
    kept[others[: round(len(vocabulary) * (100 - percent) / 100)]] = False
    return kept


def _training_counts() -> Counter[int]:
    texts = [t.prompt + t.answer for kind in KINDS for t in make_tasks(kind, "train", _TRAINING_TASKS, seed=0)]
    return Counter(token for ids in tokenizer()(texts).input_ids for token in ids)


class MaskedPlugin:
    """The plug-in `crosstok`, whose pair of tokenizers has only the kept ids in common.

    Args:
        kept: [V] bool.
        translates: build a translator, so that drafts may be text; without one they are common ids.
    """

    def __init__(self, kept: Tensor, *, translates: bool) -> None:
        ids = np.where(kept.numpy(), np.arange(len(kept)), -1).astype(np.int32)
        percent = 100 * float(kept.float().mean())
        translator = Translator.between(tokenizer(), tokenizer("tiny-draft")) if translates else None
        self._pair = Pair(Intersection(ids, ids, percent, percent), translator)

    def build(self, context: Any) -> CrossTok:
        """Build the proposer."""
        with mock.patch.object(Pair, "of", return_value=self._pair):
            return CrossTok(context)

    @hookimpl
    def specplug_register_proposers(self, register: Callable[[ProposerSpec], None]) -> None:
        """Register it."""
        specplug_crosstok.plugin.specplug_register_proposers(
            lambda spec: register(replace(spec, factory=self.build, memory=None))
        )


@contextmanager
def masked(kept: Tensor, *, translates: bool) -> Iterator[Registry]:
    """Return a registry with the masked proposer."""
    registry = Registry()
    modules = {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin}
    for name, module in {**modules, "masked": MaskedPlugin(kept, translates=translates)}.items():
        registry.add(module, Owner(name, "benchmarks", "0"))
    if registry.load_errors:
        raise RuntimeError(str(registry.load_errors))
    yield registry


@dataclass(frozen=True)
class Decided:
    """One decided draft token.

    Attributes:
        request: its index.
        at: its place in the output.
        position: its place in the draft, from 0.
        accepted: whether it was kept.
    """

    request: int
    at: int
    position: int
    accepted: bool


def decided_tokens(engine: Any, requests: Sequence[Any]) -> tuple[list[Decided], list[list[int]]]:
    """Serve requests step by step; return the decided draft tokens and the outputs."""
    order = {engine.add(request): place for place, request in enumerate(requests)}
    found: list[Decided] = []
    before = dict.fromkeys(order.values(), (0, 0, 0))
    outputs: list[list[int]] = [[] for _ in order]
    for output in engine.run():
        place = order[output.request_id]
        length, verified, accepted = before[place]
        before[place] = len(output.token_ids), output.verified, output.accepted
        outputs[place] = list(output.token_ids)
        drafted, kept = output.verified - verified, output.accepted - accepted
        for position in range(min(drafted, kept + 1, len(output.token_ids) - length)):
            found.append(Decided(place, length + position, position, position < kept))
    return found, outputs


@torch.no_grad()
def reachable(prompt: Sequence[int], output: Sequence[int], kept: Tensor, temperature: float) -> Tensor:
    """Return [n] float64: sum(min(p, q')) before each output token."""
    ids = torch.tensor([[*prompt, *output]])
    target, draft = (model(name)(input_ids=ids).logits[0, len(prompt) - 1 : -1] for name in ("tiny", "tiny-draft"))
    p = (target.double() / temperature).softmax(1)
    q = (draft.double() / temperature).masked_fill(~kept, -torch.inf).softmax(1)
    total: Tensor = torch.minimum(p, q).sum(1)
    return total


def measured(
    prompts: Sequence[Sequence[int]], order: str, percent: int, route: str, batch: int, temperature: float = 1.0
) -> dict[str, Any]:
    """Return acceptance by position; for "tli" beside what is reachable."""
    kept = kept_ids(order, percent)
    chosen = settings("tiny-draft", route)
    with (
        masked(kept, translates=route != "tli") as registry,
        serving(chosen, batch, registry) as engine,
    ):
        decided, outputs = decided_tokens(engine, requests_of(prompts, temperature))
        counts = engine.metrics.snapshot()
        if counts.faults:
            raise RuntimeError(f"the proposer failed: {counts.faults}")
    row: dict[str, Any] = {
        "masked": order if percent < 100 else "nothing",
        "common_percent": 100 * float(kept.float().mean()),
        "route": route,
        "decided": len(decided),
        "accepted": sum(it.accepted for it in decided) / len(decided),
        "accepted_by_position": _by_position(decided, [float(it.accepted) for it in decided]),
        "tau": sum(map(len, outputs)) / counts.total.target_steps,
    }
    if route == "tli":
        row |= _against_reachable(prompts, outputs, decided, kept, temperature)
    return row


def _against_reachable(
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    decided: Sequence[Decided],
    kept: Tensor,
    temperature: float,
) -> dict[str, Any]:
    """Return the reachable acceptance and the share of it that was measured, with the error of chance (1.96 sigma)."""
    sums = [reachable(p, o, kept, temperature) for p, o in zip(prompts, outputs, strict=True)]
    most = np.array([float(sums[it.request][it.at]) for it in decided])
    accepted = np.array([it.accepted for it in decided])
    positions = [np.array([it.position == place for it in decided]) for place in range(GAMMA)]

    def share(mask: Any) -> tuple[float, float]:
        r = most[mask]
        return float(accepted[mask].sum() / r.sum()), float(1.96 * np.sqrt((r * (1 - r)).sum()) / r.sum())

    return {
        "reachable": float(most.mean()),
        "reachable_by_position": _by_position(decided, most.tolist()),
        "of_reachable": share(np.ones(len(most), bool)),
        "of_reachable_by_position": [share(mask) for mask in positions],
    }


def _by_position(decided: Sequence[Decided], values: Sequence[float]) -> list[float]:
    return [
        float(np.mean([v for it, v in zip(decided, values, strict=True) if it.position == place]))
        for place in range(GAMMA)
    ]
