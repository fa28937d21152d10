"""Operator interface of a server: control, status, metrics, corpora, access to routes, and launch lines."""
