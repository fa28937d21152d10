"""Verifiers: the plain-torch reference that every faster one is held to, and what they share."""
