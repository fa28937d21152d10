"""Helpers of the replay tests: small items, a loop over requests in flight, and planted plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specplug.interfaces import Planner, PluginContext, Proposer, Trimmer
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec, ProposerSpec
from specplug.tools.replay.items import TokenItem
from specplug.tools.replay.score import StepCounts
from specplug.types.caps import ProposerCaps
from specplug.types.plan import HostStats, TrimLimits
from specplug.types.step import Draft, EngineBatch, StepPlan
from tests.plugins.planted import plugin
from tests.steps.tools import Recorder

torch.set_num_threads(1)

EOS, VOCAB = 0, 8


def item(prompt: Sequence[int], output: Sequence[int], name: str = "a", documents: Sequence[Sequence[int]] = ()) -> Any:
    """Return an item whose output ends with EOS."""

    def ids(values: Sequence[int]) -> Any:
        return np.array(values, dtype=np.int32)

    return TokenItem(name, ids(prompt), tuple(map(ids, documents)), ids([*output, EOS]))


def named(pairs: Sequence[tuple[list[int], list[int]]]) -> list[TokenItem]:
    return [item(prompt, output, f"request-{index}") for index, (prompt, output) in enumerate(pairs)]


TEXT = st.lists(st.integers(1, 3), min_size=1, max_size=12)
ITEMS = st.lists(st.tuples(TEXT, st.lists(st.integers(1, 3), max_size=24)), min_size=1, max_size=3).map(named)
"""Few different tokens, so that much repeats."""


def in_turn(engine: Any, items: Sequence[TokenItem], slots: int) -> StepCounts:
    """Serve items, at most `slots` at a time, which take a step each in turn, and close the engine."""
    counts, waiting, free = StepCounts(), [*items][::-1], [*range(slots)][::-1]
    running: dict[int, list[int]] = {}  # the rest of the output by slot, in order of arrival
    while waiting or running:
        while waiting and free:
            request, slot = waiting.pop(), free.pop()
            first, *running[slot] = request.output.tolist()
            engine.start(slot, request.id, request.prompt, request.documents)
            engine.extend(slot, [first])
        if all(running.values()):
            offers = engine.propose()
            accepted = [offer.accepted(rest) for offer, rest in zip(offers, running.values(), strict=True)]
            emitted = [rest[: count + 1] for rest, count in zip(running.values(), accepted, strict=True)]
            for rest, offer, count, tokens in zip(running.values(), offers, accepted, emitted, strict=True):
                counts.histogram[len(offer.token_ids), count, len(tokens)] += 1
                del rest[: len(tokens)]
            engine.observe(offers, accepted, emitted)
        for slot in [slot for slot, rest in running.items() if not rest]:
            engine.finish(slot)
            del running[slot]
            free.append(slot)
    engine.close()
    return counts


class Planted(Recorder):
    """Drafts what a function returns for a row: (batch, row, limit) -> ids, each with confidence 0.5."""

    def __init__(self, write: Callable[[EngineBatch, int, int], Sequence[int]] = lambda batch, row, limit: ()) -> None:
        def write_rows(batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
            for row, limit in enumerate(limits.tolist()):
                draft.set_row(row, list(write(batch, row, limit))[:limit], 0.5)

        super().__init__(write_rows)


class PlantedPolicy(Planner, Trimmer):
    """Both halves of a policy that records what it receives, and plans what a function returns."""

    def __init__(self, plan: Callable[[HostStats], StepPlan]) -> None:
        self._plan = plan
        self.stats: list[HostStats] = []
        self.trimmed: list[tuple[int, int]] = []

    def plan(self, stats: HostStats) -> StepPlan:
        self.stats.append(stats)
        return self._plan(stats)

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        self.trimmed.append((draft.batch_size, int(limits.token_budget)))
        return draft


def registry(
    proposer: Callable[[PluginContext], Proposer] | None = None,
    policy: PlantedPolicy | None = None,
    *,
    sections: tuple[str, ...] = (),
    **caps: Any,
) -> Registry:
    """Return the installed plug-ins and the `planted` ones."""
    named: dict[str, Any] = {"name": "planted", "summary": ""}
    proposers, policies, own = [], [], ProposerCaps(**caps)
    if proposer is not None:
        proposers.append(ProposerSpec(factory=proposer, caps=own, sections=sections, **named))
    if policy is not None:
        policies.append(PolicySpec(factory=lambda context: policy, trimmer=lambda context: policy, **named))
    found = Registry.discover()
    found.add(plugin(proposers=proposers, policies=policies), Owner("planted", "test", "0"))
    assert not found.load_errors
    return found
