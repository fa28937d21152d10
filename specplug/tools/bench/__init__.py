"""Measurement of a running server: speculation switched off and on in interleaved blocks of the user's own prompts."""
