"""Grammars on the host: drafts are cut at the first illegal token, and what a grammar forces is drafted.

A grammar is no proposer's matter, which sees a flag only, but the adapter's, wherever it can reach the grammar's state
before drafts are verified.  Its design:

* Each row's draft is followed by its grammar's state, and ends before the first token that the grammar forbids.
* Behind what is left the grammar drafts itself.  Where one token only is legal, that token is *forced*: the target's
  masked law has all its mass there, so it is always accepted.
* Where the text that must come is known, but may be cut into tokens in several ways, as is usual within the keys of a
  JSON schema, the usual cut of that text is drafted.  Forced text does not force tokens, so these are likely, no more.
* All of it is a draft, which the target verifies: nothing here decides what is emitted.
* The state is left as it was found.

What the grammar adds lies behind the proposer's draft, which is why proposers, and their share of the counts, see none
of it: it is counted, and traced, under a source of its own.
"""
