"""Start-up in every process of vLLM: patches of its configuration, refusals, and advice to the operator."""
