"""Checks of `specplug doctor` for vLLM and its launch lines."""
