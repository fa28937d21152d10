"""A Hugging Face causal language model that drafts: batched over requests, with a key-value cache for each.

pairing    what the tokenizers of a target and a draft model have in common
cache      key-value caches of many texts, written at any position
model      one forward pass over new tokens of many texts
texts      which ids of each text are cached, and which have to be computed
facts      what a model's configuration says about it, without its weights
device     drafting on the engine's own device, without reading anything back
"""
