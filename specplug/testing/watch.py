"""Check that a plug-in leaves its read-only tensors unchanged, and a proposer wrapper that applies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.interfaces import Proposer
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class WatchedProposer(Proposer):
    """Forwards every call, and raises `ContractError` if the call changed one of its read-only arguments."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.sources, self.draft_vocab = proposer.sources, proposer.draft_vocab

    def warmup(self) -> None:
        self._proposer.warmup()

    def ingest(self, batch: EngineBatch) -> None:
        watch("ingest", lambda: self._proposer.ingest(batch), batch=batch)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        read_only = {"batch": batch, "limits": limits, "draft.base_len": draft.base_len}
        watch("propose", lambda: self._proposer.propose(batch, limits, draft), **read_only)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        read_only = {"batch": batch, "draft": draft, "verdict": verdict}
        watch("observe", lambda: self._proposer.observe(batch, draft, verdict), **read_only)

    def on_event(self, event: Event) -> None:
        self._proposer.on_event(event)

    def close(self) -> None:
        self._proposer.close()


def watch(call: str, action: Callable[[], None], **read_only: Any) -> None:
    """Run an action, and raise `ContractError` if it changed one of its read-only tensors."""
    before = {name: _copies(value) for name, value in read_only.items()}
    action()
    for name, value in read_only.items():
        for path, tensor in _tensors(value).items():
            if not torch.equal(tensor, before[name][path]):
                raise ContractError.build(
                    f"{call} has changed {name}{path}",
                    found=tensor.tolist(),
                    expected=f"{before[name][path].tolist()}, because it is read-only",
                    remedy="Write to a clone of it",
                )


def _tensors(value: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch, draft or verdict by attribute, or a bare tensor."""
    if isinstance(value, Tensor):
        return {"": value}
    named = {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    return {path: tensor for path, tensor in named.items() if isinstance(tensor, Tensor)}


def _copies(value: Any) -> dict[str, Tensor]:
    return {path: tensor.clone() for path, tensor in _tensors(value).items()}
