"""Plug-in hooks, the specs that packages register through them, and the registry of everything registered."""
