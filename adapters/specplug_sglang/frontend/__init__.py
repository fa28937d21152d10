"""Request fields, the operator's routes and metrics, in SGLang's processes that serve HTTP."""
