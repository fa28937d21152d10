"""Checks of `specplug doctor` for SGLang and its launch lines."""
