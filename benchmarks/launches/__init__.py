"""Launches and host time of a step on a GPU, measured without one: see `python -m benchmarks.launches --help`."""
