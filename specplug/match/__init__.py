"""The match index: earlier places of growing texts that match their ends, and what is drafted from them.

    recency     the recency tree: exact longest matches in 8 bytes a token (kernels)
    reference   what it must find, in plain Python
    texts       one tree per running request
    responses   one tree over finished responses, told apart by owner
    sorting     places of a static text by the text before them
    shelves     static texts of many tenants, as kernels know them
    searching   the places in them that match a context best
    abreast     a batch's rows searched side by side
    evidence    what matches are worth, learnt online; confidences
    gathering   the candidates of all sources
    aligning    following a text past where it diverges
    voting      candidates vote on the next token
    drafting    chains and trees of the likeliest tokens
    learning    emitted tokens against what was said
    records     what kernels take as one argument; state is all of it
    steps       all of it for a batch
    addresses   the same for tensors
    ahead       what the next row needs is asked for in time
    lookup      the class around it
    proposer    that as a proposer; options are its settings

Kernels are compiled by numba, which is imported with these modules: only proposers import them.
"""
