"""Inputs of `specplug simulate`: the cases to judge, and recorded drafts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specplug.cli.output import progress
from specplug.cli.replay import SHIPPED, read
from specplug.errors import SettingsError

if TYPE_CHECKING:
    from specplug.simulate.judge import Case
    from specplug.simulate.trajectories import Trajectories


def cases(
    surfaces: list[str],
    modes: Iterable[str],
    traffic: Iterable[str],
    *,
    gamma: int,
    held_out: bool,
    lag: int | None,
    requests: int,
    max_running: int,
    limits: tuple[float, int],
    disturbance: tuple[float, float],
    seed: int,
) -> list[Case]:
    """Return a case of each surface, mode and traffic."""
    from specplug.simulate.arrivals import TrafficSpec
    from specplug.simulate.disturbance import Disturbance
    from specplug.simulate.engine import Limits
    from specplug.simulate.judge import Case
    from specplug.simulate.modes import modes_named
    from specplug.simulate.surfaces import SURFACES, surface_named

    wanted = surfaces or [each.name for each in SURFACES if each.held_out is held_out]
    chosen = [surface_named(name, held_out=held_out) for name in wanted]
    engines = [mode if lag is None else replace(mode, lag=lag) for mode in modes_named([*modes], gamma)]
    loads = [TrafficSpec.parse(text) for text in traffic]
    rest = (max_running, Limits(cached_share=limits[0], cached_context=limits[1]), Disturbance(*disturbance), seed)
    return [
        Case(surface, mode, load, max(requests, round(3 * load.level) if load.kind == "steady" else 0), *rest)
        for surface in chosen
        for mode in engines
        for load in loads
    ]


def trajectories(
    path: Path | None,
    traces: list[Path] | None,
    *,
    proposer: str,
    options: dict[str, Any],
    tokenizer: str | None,
    workloads: list[str],
    limit: int | None,
    seed: int,
    quiet: bool,
) -> Trajectories:
    """Read the file of trajectories if it exists, or else record them and write it; workloads are mixed at random."""
    from specplug.replay.setup import Setup
    from specplug.simulate.recording import record
    from specplug.simulate.trajectories import Trajectories

    if path is not None and path.exists():
        return Trajectories.load(path)
    if path is not None and not path.parent.is_dir():
        raise SettingsError.build("no such folder", who="--trajectories", found=str(path.parent))
    inputs = read(
        traces or [SHIPPED], workloads, tokenizer, limit=limit, cut_documents=False, distractors=0, quiet=quiet
    )
    items = [item for found in inputs.items.values() for item in found if item.output.size > 1]
    random.Random(seed).shuffle(items)
    with progress(quiet=quiet) as bar:
        task = bar.add_task("recording drafts", total=len(items))
        found = record(
            items,
            Setup(proposer, gamma=31, options=options),
            vocab_size=inputs.vocab_size,
            progress=lambda count: bar.advance(task, count),
        )
    if path is not None:
        found.save(path)
    return found
