"""The step pipeline, which every adapter calls in the same order on every engine.

`stages` has the two halves of a step, `PlanStage` on the host and `DraftStage` on the device.  They use `runner` (runs
one proposer and contains its faults, either for the stage or as a part of another proposer; see `specplug.composing`),
`handles` and `worker` (run a proposer inline, or on a thread with a deadline), `buffers` (drafts, allocated once),
`inflight` (drafts that wait for their verdict), and `sanitize` (makes any draft safe to verify).
"""
