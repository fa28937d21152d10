"""Plug-ins: the hooks by which packages add them, the specs that they register, and the registry that holds both."""
