"""The engine core's process: plans, grammars and the ends of requests."""
