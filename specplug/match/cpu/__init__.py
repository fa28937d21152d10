"""The match index on the CPU: kernels compiled by numba, and the memory that they work on.

Texts
    recency              the recency tree: exact longest matches in 8 bytes a token
    texts                one tree per running request
    responses            one tree over finished responses, separated by owner
    sorting              places of a static text, sorted by the text before them
    corpus_index         the static texts of many tenants
    searching            the places in the corpus index that match a context best
    interleaved_search   the same for a batch, with interleaved searches of its rows

Drafts
    gathering            the candidates of all sources
    aligning             continuing to follow a text after it diverges
    evidence             hit rates of matches, learnt online; confidences
    voting               candidates vote on the next token
    drafting             chains and trees of the likeliest tokens
    learning             comparison of emitted tokens with the votes and drafts

Calls
    steps                all operations for a batch; `addresses` takes tensors
    parallel, threads    the sharing of a batch among threads, and the pool of these; `atomics` are their primitives
    entries              the same operations for C callbacks, without the GIL
    lookup               the class that owns the memory and makes the calls
    records, state       records of arrays that kernels take as one argument
    row_prefetch         prefetch of the next row's memory; `prefetch` and `pointers` are the primitives
    compiled             compilation and caching of kernels
"""
