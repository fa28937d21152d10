"""Driver that runs the real draft stage between engine and proposer, including dummy steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from specplug.faults import FaultGuard
from specplug.metrics import SpecMetrics
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.handles import make_handle
from specplug.testing.driver import Driver
from specplug.trim import SurvivalTrimmer
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft


class PipelineDriver(Driver):
    """Runs every step through `DraftStage`, after a dummy step on the same slots with other text.

    A step's draft lies in the stage's buffer, which the next step overwrites.  Faults of the proposer are contained and
    counted in `guard`.

    Args:
        inline: run a host proposer that declares `inline` in the engine's thread; otherwise use a thread, as for
            batches on a GPU.
    """

    def __init__(self, *args: Any, inline: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        context = self.context
        spec = replace(self.spec, caps=replace(self.caps, inline=inline and self.caps.inline))
        handle = make_handle(spec, self.proposer, deadline=None, device=context.device)
        self.guard = FaultGuard(self.spec.name)
        self.stage = DraftStage(
            [handle],
            [self.guard],
            SurvivalTrimmer(),
            FaultGuard("trim"),
            caps=context.caps,
            max_slots=context.max_slots,
            vocab_size=context.vocab_size,
            device=context.device,
            metrics=SpecMetrics(handle.sources, context.caps.max_draft_length, context.device),
        )

    def run(self, batch: EngineBatch, draft_length: int, caps: Tensor) -> Draft:
        """Pass a dummy batch to the stage, then the real one, which is only ingested at a draft length of 0."""
        self.stage.propose(replace(batch, tokens=batch.tokens.flip(1), is_dummy=True), draft_length, caps)
        if not draft_length:
            self.stage.ingest(batch)
        return self.stage.propose(batch, draft_length, caps)

    def close(self) -> None:
        """Close the stage, and the proposer with it."""
        self.stage.close()
