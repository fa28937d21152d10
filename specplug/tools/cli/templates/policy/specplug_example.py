"""A policy for specplug."""

import specplug


class Example(specplug.Planner):
    """Drafts one token further than drafts were accepted lately."""

    def __init__(self, context: specplug.PluginContext) -> None:
        self.caps = context.caps
        self.accepted = 3.0

    def plan(self, stats: specplug.HostStats) -> specplug.StepPlan:
        # Your own idea goes here: how many tokens may be drafted, and what does each that is verified cost?
        draft_length = self.caps.fit_draft_length(round(self.accepted) + 1)
        a_tenth_each = specplug.CostPoint(0, 0.0), specplug.CostPoint(10_000, 1_000.0)
        return specplug.StepPlan(draft_length, costs=a_tenth_each)

    def observe(self, report: specplug.StepReport) -> None:
        if report.verified:
            self.accepted += 0.1 * (report.accepted / report.requests - self.accepted)


@specplug.hookimpl
def specplug_register_policies(register):
    register(
        specplug.PolicySpec(name="example", factory="specplug_example:Example", summary="drafts as far as it has paid")
    )
