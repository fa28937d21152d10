"""Grammars on the host: drafts are cut at the first illegal token, and tokens that a grammar forces are drafted.

Adapters apply grammars wherever they can reach a grammar's state before drafts are verified; proposers see only a flag.

* The grammar's state follows each row's draft, which ends before the first token that the grammar forbids.
* After what is left, the grammar itself drafts.  Where only one token is legal, that token is *forced*: the target's
  masked distribution has all its mass there, so the token is always accepted.
* Where the grammar forces a string (the jump-forward string) that several token sequences spell, as within the keys of
  a JSON schema, its canonical tokenization is drafted.  A forced string does not force tokens, so these may be refused.
* All of this is a draft, which the target verifies: nothing here decides what is emitted.
* The state is left as it was found.

The grammar's tokens come after the proposer's draft, so proposers and their counts see none of them: they are counted
and traced under a source of their own.
"""
