"""Interface of an audit's checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specplug.audit.finding import Finding
from specplug.audit.probe import Answer, Control, Material, Probe


class Check(Protocol):
    """One question of an audit.

    The audited engine answers first, because only one of the two engines may fit the device's memory at a time.

    Attributes:
        name: as it is chosen on the command line.
        summary: one line for listings.
    """

    name: str
    summary: str

    def probes(self, material: Material) -> list[Probe]:
        """Return the probes for the audited engine."""

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return the probes for the control, given the audited engine's answers."""

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Judge the answers of the audited engine by those of the control; all of them were answered."""
