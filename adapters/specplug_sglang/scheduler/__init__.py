"""The scheduler's process, in which SGLang's workers run too: plans, drafting, and the ends of requests."""
