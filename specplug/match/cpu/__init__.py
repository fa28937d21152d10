"""Compilation, records that kernels take as one argument, access by address, and locks."""
