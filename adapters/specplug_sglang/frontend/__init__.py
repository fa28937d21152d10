"""The processes that serve HTTP: request fields, the operator's routes, and metrics."""
