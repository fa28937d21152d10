"""Peers: adaptive policies of other systems, re-implemented for comparison and registered only in a simulation.

Each is a function of a `PeerSetup` that returns a `PolicySpec`.  Unlike a policy under test, a peer receives the
server's profile, as it does in its own engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulate.modes import Layout, Mode
from benchmarks.simulate.peers.nightjar import nightjar
from benchmarks.simulate.peers.setup import PeerSetup
from benchmarks.simulate.peers.survival import gate, survival
from benchmarks.simulate.peers.table import table
from benchmarks.simulate.peers.tiers import tiers
from specplug.plugins.specs import PolicySpec


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and where it applies.

    Attributes:
        build: returns its spec for one run.
        layouts: the layouts that it can run in.
        decides_in_worker: whether it decides where drafts are verified, so that its plans have no lag.
    """

    build: Callable[[PeerSetup], PolicySpec]
    layouts: frozenset[Layout] = frozenset(Layout)
    decides_in_worker: bool = False

    def applies(self, mode: Mode) -> bool:
        """Return whether it can run in a mode."""
        return mode.layout in self.layouts


_NEEDS_CUTTING = frozenset({Layout.RAGGED, Layout.CUT})

PEERS = {
    "table": Peer(table),
    "tiers": Peer(tiers),
    "nightjar": Peer(nightjar),
    "survival": Peer(survival, _NEEDS_CUTTING, decides_in_worker=True),
    "gate": Peer(gate, _NEEDS_CUTTING, decides_in_worker=True),
}
"""The peers by name."""

__all__ = ["PEERS", "Peer", "PeerSetup"]
