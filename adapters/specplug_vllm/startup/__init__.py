"""Start-up: vLLM's configuration with specplug in it, what it refuses, and what it advises."""
