"""specplug inside SGLang, as a speculative algorithm of its own.

``--speculative-algorithm SPECPLUG --speculative-num-draft-tokens 16`` asks for it; ``SPECPLUG_CONFIG`` gives its
settings.  Importing this package costs nothing.
"""
