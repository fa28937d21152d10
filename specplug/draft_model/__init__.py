"""A Hugging Face causal language model that drafts: batched over requests, with a key-value cache for each.

It works on any device, in operations of shapes that can be fixed, so that a GPU runs them as CUDA graphs and nothing is
read back.

pairing    what the tokenizers of a target and a draft model have in common
facts      what a model's configuration says about it, without its weights
cache      key-value caches of many texts, written at any position
model      one forward pass over new tokens of many texts
texts      the ids of each request's text, translated token by token
loop       the forward passes and choices of a step, each of which a GPU runs as one CUDA graph
schedule   on the host: which request has which row, and which texts have to be caught up
segments   a drafted text as tokens of the target, by byte pair encoding of many texts at once
"""
