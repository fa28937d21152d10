"""Verification in the scheduler's process, on the device: draft trees, attention, and the table of token ids."""
