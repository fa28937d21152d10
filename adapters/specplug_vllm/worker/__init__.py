"""Drafting and verification in vLLM's worker processes, for both model runners."""
