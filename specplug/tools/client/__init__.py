"""Client of running vLLM and SGLang servers: the requests of the benchmark, the audit and the plan."""
