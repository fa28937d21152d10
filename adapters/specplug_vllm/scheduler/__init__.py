"""Plans, grammars and request endings, in vLLM's engine core process."""
