"""The step pipeline: two stages, which every adapter calls in the same order on every engine.

    plan     PlanStage.plan          host, in the scheduler's process or inline
    propose  DraftStage.propose      device: ingest, draft, sanitize
    trim     DraftStage.trim         device: cut to the token budget
    verify   the engine's verifier, or a specplug verifier
    observe  DraftStage.observe      device: verdict to metrics, trace, proposers and the trim half
             PlanStage.observe       host, in the planning process: report to the plan half

`plan` and `draft` hold the stages, which share no memory.  They contain all faults of plug-ins: see `specplug.faults`.
Plug-ins always run in `torch.inference_mode`, as inside an engine's step.  Between plan and observe, only host
proposers and the trace read from the device.

Ranks must draft identically.  From equal batches, device proposers and the trim half compute equal results.  Decisions
that may differ are made in `specplug.faults` (which plug-ins are admitted or failed), in `handles` (deadlines) and by
the planner (measured times); ranks must agree on them there.
"""
