"""Order, statistics and table of `benchmarks.never_slower`, without an engine."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.never_engines import OFF, POLICY, Arm
from benchmarks.peers import Spread, interval

LEARNING_STEPS = 200
"""Steps of the policy's own planning in a cell after which rejected tokens are counted."""

_HOPE = 0.8
"""Share of the best constant length's rate below which another one is dropped after the warm-up."""


@dataclass(frozen=True)
class Block:
    """One arm's answers to a round's prompts.

    Attributes:
        token_ids: of each answer.
        target_steps, proposed, verified, accepted: the worker's counts, as in `SourceCounts`.
        policy: the counts of the policy's own steps, "before" and "after" the block; see `specplug_arms.Counts`.
    """

    arm: Arm
    token_ids: list[list[int]]
    seconds: float
    target_steps: int
    proposed: int
    verified: int
    accepted: int
    policy: dict[str, dict[str, int]]

    @property
    def tokens(self) -> int:
        """Return the number of output tokens."""
        return sum(map(len, self.token_ids))

    @property
    def rate(self) -> float:
        """Return the output tokens per second."""
        return self.tokens / self.seconds


Round = Mapping[Arm, Block]


def in_order(arms: Iterable[Arm], number: int) -> list[Arm]:
    """Return the arms in the order of a round, drawn anew for each round."""
    drawn = list(arms)
    random.Random(number).shuffle(drawn)
    return drawn


def hopeful(rounds: Sequence[Round]) -> list[Arm]:
    """Return the arms of all the rounds without the constant lengths that are far from the best one."""
    rates = {arm: statistics.median(one[arm].rate for one in rounds) for arm in rounds[-1]}
    best = max((rate for arm, rate in rates.items() if isinstance(arm, int)), default=0.0)
    return [arm for arm, rate in rates.items() if not isinstance(arm, int) or rate >= _HOPE * best]


def ratio(rounds: Sequence[Round], arm: Arm, other: Arm) -> Spread:
    """Return the ratio of two arms' rates round by round: the median and its 95 % bootstrap interval."""
    return interval([one[arm].rate / one[other].rate for one in rounds])


def differing(rounds: Sequence[Round], *, sampled: bool) -> int:
    """Return how many answers differ from those without speculation; of sampled ones only the lengths count."""
    wrong = 0
    for one in rounds:
        for block in one.values():
            for mine, truth in zip(block.token_ids, one[OFF].token_ids, strict=True):
                wrong += len(mine) != len(truth) if sampled else mine != truth
    return wrong


def rejected(blocks: Sequence[Block]) -> dict[str, Any] | None:
    """Count the policy's blocks of one cell, in order, that began after `LEARNING_STEPS` of its steps there.

    Returns:
        "steps" and "emitted" tokens; tokens verified in vain: "drafts", and "positions", which includes padding.  None
        if no block began that late.
    """
    first = blocks[0].policy["before"]["steps"] + LEARNING_STEPS
    late = [block for block in blocks if block.policy["before"]["steps"] >= first]
    if not late:
        return None
    before, after = late[0].policy["before"], late[-1].policy["after"]
    grown = {name: after[name] - before[name] for name in after}
    return {
        "steps": grown["steps"],
        "emitted": sum(block.tokens for block in late),
        "drafts": sum(block.verified - block.accepted for block in late),
        "positions": grown["verified"] - grown["accepted"],
    }


def summarise(rounds: Sequence[Round], warm_up: int, *, sampled: bool, timed: bool) -> dict[str, Any]:
    """Return a cell's row, without ratios if answers differ or the engine is not timed.

    Args:
        rounds: in order; every arm but dropped constant lengths is in all of them.
        warm_up: number of first rounds that are left out of ratios and tau.
        sampled: whether the answers were sampled.
        timed: whether seconds mean anything.
    """
    kept, mine = rounds[warm_up:], [one[POLICY] for one in rounds]
    constant = [block for one in rounds for arm, block in one.items() if isinstance(arm, int)]
    drafted = sum(block.proposed for block in constant)
    counted = mine[warm_up:]
    row: dict[str, Any] = {
        "differing": differing(rounds, sampled=sampled) if timed else 0,
        "answers": sum(len(block.token_ids) for one in rounds for block in one.values()),
        "blocks": len(kept),
        "tau": sum(block.tokens for block in counted) / sum(block.target_steps for block in counted),
        "acceptance_rate": sum(block.accepted for block in constant) / drafted if drafted else None,
        "rejected": rejected(mine),
    }
    if not timed or row["differing"]:
        return row
    lengths = [arm for arm in kept[-1] if isinstance(arm, int)]
    rates = {arm: statistics.median(one[arm].rate for one in kept) for arm in (OFF, POLICY, *lengths)}
    best = max(lengths, key=lambda arm: rates[arm])
    return {
        **row,
        "tokens_per_second": {str(arm): rate for arm, rate in rates.items()},
        "to_none": ratio(kept, POLICY, OFF),
        "best_fixed": best,
        "best_fixed_to_none": ratio(kept, best, OFF),
        "to_best_fixed": ratio(kept, POLICY, best),
    }


def table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print the rows."""
    from specplug.cli.output import print_table

    header = (
        "traffic",
        "requests",
        "to none",
        "best fixed",
        "it to none",
        "to best fixed",
        "tau",
        "accepted",
        "rejected",
        "with padding",
        "identical",
    )
    print_table(title, header, [cells(row) for row in rows])


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row's cells; shares of rejected tokens are per emitted token."""
    names = ("to_none", "best_fixed", "best_fixed_to_none", "to_best_fixed")
    ratios = [_stated(row[name]) for name in names] if "to_none" in row else [""] * len(names)
    if row["differing"]:
        ratios[0] = "outputs differ"
    accepted, wasted = row["acceptance_rate"], row["rejected"]
    shares = ["", ""] if wasted is None else [f"{wasted[it] / wasted['emitted']:.2%}" for it in ("drafts", "positions")]
    return (
        row["traffic"],
        str(row["concurrency"]),
        *ratios,
        f"{row['tau']:.2f}",
        "" if accepted is None else f"{accepted:.1%}",
        *shares,
        f"{row['answers'] - row['differing']} of {row['answers']}",
    )


def _stated(found: Any) -> str:
    return str(found) if isinstance(found, int) else "{:.3f}  ({:.3f} to {:.3f})".format(*found)
