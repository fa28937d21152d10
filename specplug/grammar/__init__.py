"""Grammars on the host: drafts are cut at the first illegal token, and tokens that a grammar forces are drafted.

Adapters apply grammars wherever they can reach a grammar's state before drafts are verified; proposers see only a flag.

* The grammar's state follows each row's draft, which is cut before the first token that the grammar forbids.
* After the rest of the draft, the grammar itself drafts.  If only one token is legal, that token is *forced*: the
  target's masked distribution has all its mass there, so the token is always accepted.
* If the grammar forces a string (the jump-forward string) with several possible tokenizations, for example within the
  keys of a JSON schema, its canonical tokenization is drafted.  A forced string does not force tokens, so these may be
  rejected.
* All of these tokens are drafts, which the target verifies: nothing here decides the output.
* The grammar's state is restored afterwards.

The grammar's tokens come after the proposer's draft, so proposers and their counts do not include them: they are
counted and traced under their own source.
"""
