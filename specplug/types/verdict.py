"""Outcome and Verdict: the results of verifying a step's drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specplug.types.step import Draft


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An engine's report after a step, for each row of the batch that was verified.

    Attributes:
        verified: [B] int32, draft tokens that the engine put through the target, padding included.
        accepted: [B] int32, draft tokens that it accepted, bonus excluded, padding included.
        emitted: [B] int32, tokens appended to the request, bonus or recovered token included; 0 for prefill chunks.
        cut_by_grammar: [B] int32, draft tokens that a grammar removed before verification; None when not known.
        after_stop: [B] int32, emitted tokens after a stop, which no client sees; None when not known.
        forced: chains that grammars drafted after the proposers' drafts, also counted in `verified` and `accepted`;
            None for none.
    """

    verified: Tensor
    accepted: Tensor
    emitted: Tensor
    cut_by_grammar: Tensor | None = None
    after_stop: Tensor | None = None
    forced: Draft | None = None

    def discarded(self) -> Tensor:
        """Return [B] bool, true for rows whose request had ended before the step: the engine drops all their tokens.

        The step that reaches a request's end is not one of them: it emits the end itself, which is not after the stop.
        """
        if self.after_stop is None:
            return torch.zeros_like(self.emitted, dtype=torch.bool)
        return (self.emitted > 0) & (self.after_stop >= self.emitted)

    def until_stop(self) -> tuple[Tensor, Tensor]:
        """Return `verified` and `accepted` without the tokens after a stop, [B] int32 each.

        The token that ends a row counts as the one that any step emits, also if it was drafted: what clients receive of
        a step is one token more than its accepted ones.
        """
        if self.after_stop is None:
            return self.verified, self.accepted
        before = (self.emitted - self.after_stop - 1).clamp(min=0)
        verified = torch.where(self.after_stop > 0, torch.minimum(self.verified, before), self.verified)
        return verified, torch.minimum(self.accepted, verified)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The result of each row's draft; all tensors are [B] int32 on the engine's device.

    Rejected, never verified and cut by grammar are three different results: of `proposed` tokens, `verified` went
    through the target; of those, `accepted` were kept and at most one more was rejected.  A token after the first
    rejection, a trimmed token and a token cut by a grammar are censored: they say nothing about their confidence.

    A row whose request had ended before the step counts as having no draft: the engine discards its tokens.  A draft
    that reaches beyond the end counts as far as the token that ends the request, see `Outcome.until_stop`.

    Attributes:
        proposed: draft tokens that the proposer wrote and the trim step kept.
        verified: proposed tokens that went through the target, up to the request's end.
        accepted: min(the engine's count, the real draft length); the engine can also accept padding, which is not
            counted.
        cut_by_grammar: proposed tokens that a grammar removed before verification.
        emitted: tokens appended to the request, bonus or recovered token included.
        after_stop: emitted tokens after a stop.  No client sees them; do not learn from them.
    """

    proposed: Tensor
    verified: Tensor
    accepted: Tensor
    cut_by_grammar: Tensor
    emitted: Tensor
    after_stop: Tensor

    @classmethod
    def build(cls, proposed: Tensor, outcome: Outcome) -> Verdict:
        """Join the draft lengths `proposed` [B] int32 with the engine's report.  Reads nothing back."""
        zero = torch.zeros_like(proposed)
        if outcome.after_stop is not None:
            proposed = torch.where(outcome.discarded(), zero, proposed)
        cut = zero if outcome.cut_by_grammar is None else torch.minimum(outcome.cut_by_grammar, proposed)
        verified, accepted = outcome.until_stop()
        verified = torch.minimum(verified, proposed if cut is zero else proposed - cut)
        return cls(
            proposed=proposed,
            verified=verified,
            accepted=torch.minimum(accepted, verified),
            cut_by_grammar=cut,
            emitted=outcome.emitted,
            after_stop=zero if outcome.after_stop is None else outcome.after_stop,
        )

    @classmethod
    def of_nothing(cls, outcome: Outcome) -> Verdict:
        """Return the verdict of `build` for empty drafts."""
        zero = torch.zeros_like(outcome.emitted)
        after = zero if outcome.after_stop is None else outcome.after_stop
        return cls(zero, zero, zero, zero, emitted=outcome.emitted, after_stop=after)

    def tested(self) -> Tensor:
        """Return [B] int32: draft tokens whose acceptance was decided, i.e. `accepted` and the first rejected one."""
        return torch.minimum(self.accepted + 1, self.verified)
