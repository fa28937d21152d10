"""One engine step: what every adapter runs, in the same order on every engine.

    plan     StepPlanner.make, PlanStage.plan           host, in the scheduler's process or inline
    propose  DraftStage.propose                         device: ingest, draft, sanitize
    trim     DraftStage.trim                            device: cut to the token budget
    verify   the engine's verifier, or a specplug verifier
    observe  DraftStage.observe                         device: verdict to metrics, trace, proposers and the trim half
             StepPlanner.finish, PlanStage.observe      host, in the planning process: report to the plan half

A runner calls the same functions whether it waits for each step or not; overlapped, results arrive a step later:

    while running:                                      while running:
        plan = planner.make(running)                        plan = planner.make(running)
        record = planner.launch(began, cost)                records.append(planner.launch(began, cost))
        results = ...  # verify, draft by the plan          ...  # begin to verify and draft; then, of the step before,
        planner.finish(record, results, ended)              planner.finish(records.popleft(), results, ended)

`plan_stage` and `draft_stage` share no memory.  They contain all faults of plug-ins: see `specplug.faults`.  Plug-ins
always run in `torch.inference_mode`, as inside an engine's step.  Between plan and observe, only host proposers and the
trace read from the device.  `draft_stage` is the reference, in operations on tensors; `device_steps` takes the same
steps by `kernels`.  `rows` are those of a batch, on the host and on the device, and make it an `EngineBatch`; what is
kept by slot is in `slots`, `stops` and `in_flight`; `sanitize` and `trim` cut drafts.

Ranks must draft identically.  From equal batches, device proposers and the trim half compute equal results.  Decisions
that may differ are made in `specplug.faults` (which plug-ins are admitted or failed), in `handles` (deadlines) and by
the planner (measured times); ranks must agree on them there.
"""
