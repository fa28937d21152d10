"""Acceptance by position from the JSON of a replay, `specplug replay --json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, describe
from specplug.forecast.acceptance import Acceptance


def read_replay(path: Path) -> Acceptance:
    """Read the replay of one proposer.  Of several batch sizes the smallest counts, where a policy cuts drafts least.

    Raises:
        SettingsError: the file is no replay's JSON, or holds several proposers or modes, trees, or no drafts.
    """
    who = f"--replay {path}"
    try:
        run = _only(json.loads(path.read_bytes())["runs"], who)
        workloads = run["workloads"].values()
        found = from_histogram((row for workload in workloads for row in workload["histogram"]), _source(run))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError.build(
            "no JSON of a replay",
            who=who,
            found=describe(error),
            remedy="Write one with: specplug replay --json > replay.json",
        ) from error
    if not found.longest:
        raise SettingsError.build("nothing was drafted", who=who, remedy="Replay with --gamma above 0, and a proposer")
    return found


def from_histogram(rows: Iterable[Sequence[int]], source: str) -> Acceptance:
    """Return the shares of steps by position, from rows of [verified, accepted, emitted, steps].

    A step that ended its output counts as accepted what it emitted, so that tau is the replay's.
    """
    steps = 0
    lengths: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for verified, _, emitted, count in rows:
        steps += count
        lengths[verified] += count
        accepted[emitted - 1] += count
    positions = range(max(lengths, default=0))

    def shares(counts: Counter[int]) -> tuple[float, ...]:
        """Return for each position the share of steps that reach beyond it."""
        return tuple(sum(counts[n] for n in counts if n > position) / steps for position in positions)

    return Acceptance(shares(accepted), shares(lengths), source)


def _only(runs: Sequence[dict[str, Any]], who: str) -> dict[str, Any]:
    """Return the run at the smallest batch size of the only proposer and mode."""
    kinds = list(dict.fromkeys(f"{run['label']}, {run['mode']}" for run in runs))
    if len(kinds) != 1:
        raise SettingsError.build(
            "a plan is for one proposer in one mode",
            who=who,
            found="; ".join(kinds) or "no run",
            remedy="Replay with one --proposer and one --mode",
        )
    run = min(runs, key=lambda run: min(run["batches"]))
    if run["trees"]:
        raise SettingsError.build("a plan is for chains", who=who, found="trees", remedy="Replay without --trees")
    return run


def _source(run: dict[str, Any]) -> str:
    return f"replay of {run['label']}, {run['mode']}, gamma {run['gamma']}, at batch size {min(run['batches'])}"
