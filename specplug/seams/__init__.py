"""Seams: the private names of an engine that an adapter relies on, held against the engine that is there."""
