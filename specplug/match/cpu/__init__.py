"""The match index on the CPU: kernels compiled by numba, and the memory that they work on.

Texts
    recency         the recency tree: exact longest matches in 8 bytes a token
    texts           one tree per running request
    responses       one tree over finished responses, separated by owner
    sorting         places of a static text, sorted by the text before them
    corpus_index    the static texts of many tenants
    searching       the places in the corpus index that match a context best

Drafts
    candidates      those of own text, responses, siblings and corpora; following a text after it diverges
    evidence        hit rates of matches, learnt online; confidences
    voting          candidates vote on the next token
    drafting        chains and trees of the likeliest tokens

Calls
    steps           all operations for a batch
    parallel        the sharing of a batch among threads
    host_step       the same operations as a C function, and by address
    lookup          the class that owns the memory and makes the calls
    rows, records   the state by slot; records of arrays that kernels take as one argument
    locks           what keeps steps in a stream away from what changes beside them
    compiled        compilation, caching, and calls by address
    intrinsics      access by address, prefetches, atomic operations
"""
