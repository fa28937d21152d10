"""Verification on the device: trees of draft tokens, attention, and the text of running requests."""
