"""Plans, drafting and request endings, in SGLang's scheduler process, which also runs the workers."""
