"""Functions that audit an engine from inside its process, and mistakes to plant in its scheduler's; see
`tests.engines.auditing`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from specplug.operator.status import counting
from specplug.plugins.engines import TextRequest, TextUpdate
from specplug_sglang import status
from specplug_sglang.generate_process import _generate
from tests.engines.auditing import answers_of
from tests.engines.sglang import trees


class Within:
    """The command line's engine without its process of its own, and the pipe to that process."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._sent: list[tuple[str, Any]] = []

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        self._sent.clear()
        _generate(self._engine, [asdict(request) for request in requests], self)  # type: ignore[arg-type]
        for what, update in self._sent:
            if what == "update":
                yield TextUpdate(**update)

    def send(self, message: tuple[str, Any]) -> None:
        self._sent.append(message)

    def poll(self) -> bool:
        return False


def answer(engine: Any, probes: list[dict[str, Any]], together: int) -> list[dict[str, Any]]:
    """Answer an audit's probes as the command line's engine does."""
    return answers_of(Within(engine), probes, together)  # type: ignore[arg-type]


def counts(engine: Any) -> list[int]:
    """Return the accepted and the rejected draft tokens so far."""
    totals = [part["metrics"]["total"] for one in status.read(engine) for part in counting(one)]
    return [sum(total[name] for total in totals) for name in ("accepted", "rejected")]


def swap_rows(scheduler: Any) -> None:
    """Verify the drafts of the first two rows by each other's logits."""
    from specplug_sglang.verification import seeded

    verify = seeded.verify

    def swapped(runner: Any, batch: Any, logits: Any, mask: Any) -> Any:
        if len(batch.reqs) > 1:
            rows = logits.next_token_logits.view(len(batch.reqs), -1, logits.next_token_logits.shape[-1])
            logits.next_token_logits = torch.cat([rows[:2].flip(0), rows[2:]]).flatten(0, 1)
        return verify(runner, batch, logits, mask)

    trees.put(seeded, "verify", swapped)


def shift_slots(scheduler: Any) -> None:
    """Write keys and values of verified tokens to their neighbours' positions."""
    from specplug_sglang.scheduler import worker

    prepare = worker.prepare

    def shifted(batch: Any, verify_input: Any) -> None:
        prepare(batch, verify_input)
        batch.out_cache_loc = batch.out_cache_loc.roll(1)

    trees.put(worker, "prepare", shifted)
