"""The step pipeline: what every adapter calls, in the same order, whatever its engine.

`stages` has the two halves of a step, `PlanStage` on the host and `DraftStage` on the device.  Below them lie `runner`
(one proposer, run and contained, of the stage itself or as a part of another one; see `specplug.composing`), `handles`
and `worker` (a proposer inline, or on a thread with a deadline), `buffers` (drafts allocated once), `inflight` (drafts
that wait for their verdict), and `sanitize` (any draft made safe to verify).
"""
