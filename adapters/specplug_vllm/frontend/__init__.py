"""Request fields, the operator's routes and metrics, in vLLM's API server process."""
