"""The API server's process: request fields, the operator's routes, and metrics."""
