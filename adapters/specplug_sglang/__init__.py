"""SGLang adapter of specplug, which registers the speculative algorithm ``SPECPLUG``.

``--speculative-algorithm SPECPLUG --speculative-num-draft-tokens 16`` enables it; ``SPECPLUG_CONFIG`` holds its
settings.  Importing this package imports no SGLang.
"""
