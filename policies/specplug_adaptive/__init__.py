"""The policy `adaptive`: drafts for each request as far as its own drafts were accepted lately."""
