"""A policy that knows the batch size: verify a draft token where what it brings pays for what it costs."""
