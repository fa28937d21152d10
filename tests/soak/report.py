"""Report of a soak: what was sent, what was broken, what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.soak.judge import LEAST_P, Judge
from tests.soak.leaks import LEAST_SAMPLES, MIB, Growth, Sample
from tests.soak.targets import PLANTED

MANY = 200
"""Sampled outputs of which some context is always shared by enough."""

LEAST_NAMED = 20
"""Requests for a faulty proposer of which some always draft: others may end before they do."""

LATE = ("late", "switched off", "came back")
"""What happens to a sound proposer on a slow machine."""


@dataclass(frozen=True)
class Report:
    """Result of one run: the judged requests, the injected faults, and the server's resources and counts.

    Attributes:
        faults, fault_problems: what was injected, by kind, and what the server did not take as expected.
        first, last: the resources before and after the traffic, idle.
        accepted, drafts: draft tokens that were accepted, and whether speculation was on.
        proposer_faults: faults of proposers that the server counted, by proposer and kind.
        crash: how the server failed, or None.
        unwatched: servers without growths, by how many samples of each were read.
    """

    engine: str
    seconds: float
    judge: Judge
    faults: Mapping[str, int]
    fault_problems: Sequence[str]
    growths: Sequence[Growth]
    first: Sample
    last: Sample
    preemptions: int
    accepted: int
    drafts: bool
    proposer_faults: Mapping[str, Mapping[str, int]]
    crash: str | None
    unwatched: Sequence[int] = ()

    @classmethod
    def joined(cls, lives: Sequence[Report]) -> Report:
        """Return the report on servers that ran one after the other with the same judge; each may not have grown."""
        last = lives[-1]
        faults = sum((Counter(life.faults) for life in lives), Counter[str]())
        of_proposers: dict[str, Counter[str]] = {}
        for life in lives:
            for name, kinds in life.proposer_faults.items():
                of_proposers.setdefault(name, Counter()).update(kinds)
        return replace(
            last,
            seconds=sum(life.seconds for life in lives),
            faults=faults,
            fault_problems=[problem for life in lives for problem in life.fault_problems],
            growths=[growth for life in lives for growth in life.growths],
            unwatched=[count for life in lives for count in life.unwatched],
            preemptions=sum(life.preemptions for life in lives),
            accepted=sum(life.accepted for life in lives),
            proposer_faults=of_proposers,
            crash=next((life.crash for life in lives if life.crash is not None), None),
        )

    @property
    def failures(self) -> list[str]:
        """What was wrong, in words; empty if nothing was."""
        judge = self.judge
        found = [] if self.crash is None else [f"crash: {self.crash}"]
        found += [f"wrong tokens in {judge.wrong} outputs"] * bool(judge.wrong)
        found += [f"{judge.failed} requests failed"] * bool(judge.failed)
        found += ["no output was compared"] * (not judge.compared)
        found += judge.problems
        found += self.fault_problems
        found += [f"leak of {growth.name}: {_numbers(growth)}" for growth in self.growths if not growth.is_flat]
        found += [f"leaks: {_unwatched(count)}" for count in self.unwatched if count >= LEAST_SAMPLES]
        found += [f"{self.last.slots} slots are occupied when no request runs"] * bool(self.last.slots)
        found += [f"sampled with {name}: p = {g.p:.2g}" for name, g in judge.sampled().items() if g.p < LEAST_P]
        found += ["too few sampled outputs to judge"] * (judge.kinds["sampled"] >= MANY and not judge.sampled())
        allowed = sum(judge.kinds.values()) // 100
        found += [f"{judge.near_ties} near ties, {allowed} allowed"] * (judge.near_ties > allowed)
        found += ["no draft was accepted"] * (self.drafts and not self.accepted)
        if not self.drafts and self.accepted:
            found.append(f"{self.accepted} draft tokens were accepted with speculation off")
        return found + self._wrong_faults()

    def _wrong_faults(self) -> list[str]:
        """Return faults of sound proposers, and planted ones that are missing; late drafts depend on the machine."""
        faults = self.proposer_faults
        found = [
            f"{name} is sound, and {count} times {kind}"
            for name, kinds in faults.items()
            for kind, count in kinds.items()
            if count and name not in PLANTED and kind not in LATE
        ]
        for name, kind in PLANTED.items():
            named = self.judge.variants[name]
            if self.drafts and kind != "late" and named >= LEAST_NAMED and not faults.get(name, {}).get(kind):
                found.append(f"{named} requests named {name}: never {kind}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        judge = self.judge
        judged = ("kinds", "variants", "left", "compared", "tokens", "wrong", "failed", "near_ties")
        own = ("accepted", "preemptions", "faults", "proposer_faults")
        return {
            "engine": self.engine,
            "ok": not self.failures,
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
            "requests": sum(judge.kinds.values()),
            **{name: getattr(judge, name) for name in judged},
            "p_values": {name: found.p for name, found in judge.sampled().items()},
            **{name: getattr(self, name) for name in own},
            "first": asdict(self.first),
            "last": asdict(self.last),
            "unwatched": self.unwatched,
            "growths": [{**asdict(growth), "is_flat": growth.is_flat} for growth in self.growths],
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        judge = self.judge
        yield f"{self.engine}: {sum(judge.kinds.values()):,} requests in {self.seconds:.0f} s"
        yield "  by kind: " + _listed(judge.kinds)
        yield "  by fields: " + _listed(judge.variants)
        yield "  clients that left: " + _listed(judge.left)
        yield f"  preemptions: {self.preemptions}; draft tokens accepted: {self.accepted:,}"
        yield "  faults injected: " + _listed(self.faults)
        faults = (f"{name} {_listed(kinds)}" for name, kinds in self.proposer_faults.items())
        yield "  faults of proposers: " + "; ".join(faults)
        yield f"  wrong tokens: {judge.wrong} of {judge.compared:,} outputs; {judge.tokens:,} tokens compared"
        yield "  sampled: " + ("; ".join(f"{n}: p = {g.p:.3g}" for n, g in judge.sampled().items()) or "too few")
        yield f"  idle, before and after: {_sample(self.first)}; {_sample(self.last)}"
        yield "  memory by process: " + "; ".join(
            f"{name} {size / MIB:,.0f} to {self.last.by_process.get(name, 0) / MIB:,.0f} MiB"
            for name, size in self.first.by_process.items()
        )
        yield from (f"  {growth.name}: {_numbers(growth)}" for growth in self.growths)
        yield from (f"  leaks: {_unwatched(count)}" for count in self.unwatched)
        yield from (f"  FAILED: {failure}" for failure in self.failures)
        yield "  passed" if not self.failures else "  failed"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()) if count) or "none"


def _sample(found: Sample) -> str:
    counts = f"{found.threads} threads, {found.files} files, {found.connections} connections, {found.slots} slots"
    return f"{found.memory / MIB:,.0f} MiB, {counts}"


def _unwatched(count: int) -> str:
    return f"not judged, as none of {count} samples is of the second quarter of the requests"


def _numbers(growth: Growth) -> str:
    unit, name = (MIB, " MiB") if growth.name == "memory" else (1, "")
    judged = "not judged" if growth.tolerance is None else f"{growth.tolerance / unit:.0f}{name} allowed"
    change = f"{growth.early / unit:,.1f} to {growth.late / unit:,.1f}{name}, {judged}"
    return change + (f"; {growth.per_request / 1024:.2f} KiB a request" if growth.name == "memory" else "")
