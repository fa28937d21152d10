"""Start-up: specplug as one of SGLang's speculative algorithms, what it refuses, and what it advises."""
