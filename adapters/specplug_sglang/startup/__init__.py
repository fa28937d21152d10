"""Start-up: the speculative algorithm that SGLang sees, refusals, and advice to the operator."""
