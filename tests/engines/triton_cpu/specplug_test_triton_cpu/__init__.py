"""Test only: lets vLLM's V2 model runner run on a CPU, through Triton's interpreter (``TRITON_INTERPRET=1``).

vLLM looks for a Triton backend called "cpu"; this one satisfies the search and compiles nothing.
"""
