"""The constant policies: `fixed`, a constant gamma, and `none`, no speculation."""
