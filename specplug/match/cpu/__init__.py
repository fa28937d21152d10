"""The match index on the CPU: kernels compiled by numba, and the memory that they work on.

Texts
    recency              the recency tree: exact longest matches in 8 bytes a token
    texts                one tree per running request
    responses            one tree over finished responses, kept apart by owner
    sorting              places of a static text, sorted by the text before them
    corpus_index         the static texts of many tenants
    searching            the places in them that match a context best
    interleaved_search   the same for a batch: rows are searched side by side

Drafts
    gathering            the candidates of all sources
    aligning             following a text past where it diverges
    evidence             what matches are worth, learnt online; confidences
    voting               candidates vote on the next token
    drafting             chains and trees of the likeliest tokens
    learning             comparison of emitted tokens with the votes

Calls
    steps                all of it for a batch; `addresses` takes tensors
    lookup               the class that owns the memory and makes the calls
    records, state       what kernels take as one argument
    row_prefetch         memory of the next row, requested in time; `prefetch` and `pointers` are the primitives
    compiled             how kernels are compiled and cached
"""
