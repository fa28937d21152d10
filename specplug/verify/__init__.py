"""Verifiers: the plain-torch reference that every faster verifier must match, and shared helpers."""
