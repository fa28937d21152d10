"""Checks that a device computes what a CPU computes: kernels, whole steps, and the reference verifier.

Each check returns the number of cases that it compared, and what differed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from specplug.steps.device_steps import launches_for
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.plan import TrimLimits
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits
from specplug.verify.random import uniforms
from specplug.verify.reference import ReferenceVerifier
from tests.steps.oracle import Engine, compare, lookup_stage
from tests.steps.trim_tools import bits, random_case

CPU = torch.device("cpu")
Found = tuple[int, list[str]]


def check(device: torch.device, cases: int, seed: int = 0) -> dict[str, Any]:
    """Run all checks; return the cases of each, and what differed.

    Args:
        device: to compare with the CPU.
        cases: of each check; a case is one call or one step.
        seed: of all random cases.
    """
    compared: dict[str, int] = {}
    wrong: list[str] = []
    for name, function in CHECKS.items():
        print(f"  {name}", flush=True)
        compared[name], differing = function(device, cases, Random(seed))
        wrong += [f"{name}: {stated}" for stated in differing[:3]]
    return {"compared": compared, "wrong": wrong}


def steps(device: torch.device, cases: int, random: Random) -> Found:
    """Compare steps of the lookup on the device, of requests that come and go, with those on the CPU."""
    wrong, compared, seed = [], 0, random.random()
    while compared < cases:
        engines = [Engine(), Engine(lookup_stage(device=device), launches=launches_for(device), device=device)]
        count, differing = compare(Random(f"{seed} {compared}"), engines, steps=60)
        wrong += [f"of the steps from {compared} on, {stated}" for stated in differing]
        compared += count
    return compared, wrong


def trims(device: torch.device, cases: int, random: Random) -> Found:
    """Compare the drafts that the trim half keeps on the device with those that it keeps on the CPU."""
    wrong, trimmer = [], SurvivalTrimmer()
    for number in range(cases):
        case = random_case(random, trees=False, most=random.choice([7, 15, 40]))
        there = Draft.allocate(*case.draft.token_ids.shape, device=device)
        there.copy_(case.draft)
        found = trimmer.trim(there, TrimLimits.build(case.budget, case.costs, device=device))
        here = Draft.allocate(*case.draft.token_ids.shape)
        here.copy_(found)
        if bits(here) != bits(trimmer.trim(case.draft, case.limits)):
            wrong.append(f"case {number}: the device keeps other tokens")
    return cases, wrong


def verification(device: torch.device, cases: int, random: Random) -> Found:
    """Compare random numbers bit by bit, and the reference verifier's tokens, sampled and greedy."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 31))
    wrong = []
    for number in range(cases):
        rows, gamma, vocab = random.randint(1, 8), random.randint(1, 7), random.choice([5, 1000, 32000])
        seeds = torch.tensor([random.getrandbits(64) - (1 << 63) for _ in range(rows)])
        places = torch.randint(0, 1 << 20, (rows,), generator=generator)
        draft = Draft.allocate(rows, gamma)
        draft.token_ids.copy_(torch.randint(0, vocab, (rows, gamma), generator=generator))
        draft.lengths.copy_(torch.randint(0, gamma + 1, (rows,), generator=generator))
        logits = 3 * torch.randn(rows, gamma + 1, vocab, generator=generator)
        logits.scatter_(2, draft.token_ids.long()[..., None], 8.0)  # so that drafts are accepted often enough
        temperature = torch.tensor([random.choice([0.0, 0.7, 1.0]) for _ in range(rows)])
        top_p = torch.tensor([random.choice([1.0, 0.9]) for _ in range(rows)])
        outcomes = []
        for where in (CPU, device):
            drawn = uniforms(seeds.to(where), places.to(where), gamma)
            target = TargetLogits.dense(logits.to(where))
            sampling = SamplingBatch(temperature.to(where), top_p=top_p.to(where), all_greedy=number % 5 == 0)
            own = Draft.allocate(rows, gamma, device=where)
            own.copy_(draft)
            verified = ReferenceVerifier().verify(own, target, sampling, drawn)
            outcomes.append([it.cpu() for it in (drawn.accept, drawn.draw, verified.token_ids, verified.num_accepted)])
        same = [torch.equal(a, b) for a, b in zip(*outcomes, strict=True)]
        if not all(same):
            wrong.append(f"case {number}: equal are accept, draw, tokens, accepted: {same}")
    return cases, wrong


CHECKS: dict[str, Callable[[torch.device, int, Random], Found]] = {
    "steps": steps,
    "trimmed drafts": trims,
    "random numbers and verification": verification,
}
