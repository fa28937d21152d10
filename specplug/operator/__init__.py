"""The operator's side of a server: control, status, metrics, corpora, access to routes, and launch lines."""
