"""Drafting on the engine's own device, in operations of fixed shapes that read nothing back.

texts       the ids of each request's text, translated token by token
loop        the forward passes and draws of a step, each of which a GPU runs as one CUDA graph
graphs      captures functions as CUDA graphs
polled      figures of the device that the host learns late, without waiting
segments    a drafted text as tokens of the target
schedule    on the host: which request has which row, and which texts have to be caught up
"""
