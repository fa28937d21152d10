"""Seams: the private names of an engine that an adapter relies on, and their checks against the engine in use."""
