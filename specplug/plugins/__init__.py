"""The specs that packages register, their hooks, and the registry of everything registered."""
