"""Outcome and Verdict: what became of a step's drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """What grammars drafted behind proposers' drafts: B rows, at most N tokens each, on the device of the drafts.

    Attributes:
        token_ids: [B, N] int32, -1 beyond the row's length.
        confidence: [B, N] float32.
        lengths: [B] int32.
    """

    token_ids: Tensor
    confidence: Tensor
    lengths: Tensor

    @classmethod
    def build(
        cls,
        token_ids: Sequence[Sequence[int]],
        confidence: Sequence[Sequence[float]],
        draft_length: int,
        device: torch.device | str = "cpu",
    ) -> Forced:
        """Put B rows of at most `draft_length` tokens on the device."""
        padded = [[*row, *[-1] * (draft_length - len(row))] for row in token_ids]
        levels = [[*row, *[0.0] * (draft_length - len(row))] for row in confidence]
        return cls(
            torch.tensor(padded, dtype=torch.int32).to(device),
            torch.tensor(levels, dtype=torch.float32).to(device),
            torch.tensor([len(row) for row in token_ids], dtype=torch.int32).to(device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What an engine reports after a step, row by row of the batch that was verified.

    Attributes:
        verified: [B] int32, draft tokens that the engine put through the target, filler included.
        accepted: [B] int32, those that it accepted, bonus excluded, filler included.
        emitted: [B] int32, tokens appended to the request, bonus or recovered token included; 0 for prefill chunks.
        cut_by_grammar: [B] int32, draft tokens that a grammar removed before verification; None when not known.
        after_stop: [B] int32, emitted tokens behind a stop, which no client sees; None when not known.
        forced: what grammars drafted behind the proposers' drafts, part of `verified` and `accepted`; None for nothing.
    """

    verified: Tensor
    accepted: Tensor
    emitted: Tensor
    cut_by_grammar: Tensor | None = None
    after_stop: Tensor | None = None
    forced: Forced | None = None

    def discarded(self) -> Tensor:
        """Return [B] bool: rows whose request had ended before the step, so that the engine drops all they emitted.

        The step that reaches a request's end emits the end itself, which does not lie behind it.
        """
        if self.after_stop is None:
            return torch.zeros_like(self.emitted, dtype=torch.bool)
        return (self.emitted > 0) & (self.after_stop >= self.emitted)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What became of each row's draft; all [B] int32 on the engine's device.

    Rejected, never verified and cut by grammar are three different things: of `proposed` tokens, `verified` went
    through the target, of which `accepted` were kept and one more at most was rejected.  Whatever lies behind the first
    rejection, was trimmed, or was cut by a grammar says nothing about its own confidence: it is censored.

    A row whose request had ended before the step has no draft: the engine throws away what the step made of it.

    Attributes:
        proposed: draft tokens that the proposer offered and the trim step let through.
        verified: of these, those that the target looked at.
        accepted: min(the engine's count, the real draft length): filler can be accepted too, and counts for nobody.
        cut_by_grammar: of those proposed, removed by a grammar before verification.
        emitted: tokens appended to the request, bonus or recovered token included.
        after_stop: of those emitted, behind a stop: no client sees them, do not learn from them.
    """

    proposed: Tensor
    verified: Tensor
    accepted: Tensor
    cut_by_grammar: Tensor
    emitted: Tensor
    after_stop: Tensor

    @classmethod
    def build(cls, proposed: Tensor, outcome: Outcome) -> Verdict:
        """Join what was drafted, `proposed` [B] int32, with what the engine reports.  Never reads back."""
        zero = torch.zeros_like(proposed)
        proposed = torch.where(outcome.discarded(), zero, proposed)
        cut = zero if outcome.cut_by_grammar is None else torch.minimum(outcome.cut_by_grammar, proposed)
        verified = torch.minimum(outcome.verified, proposed - cut)
        return cls(
            proposed=proposed,
            verified=verified,
            accepted=torch.minimum(outcome.accepted, verified),
            cut_by_grammar=cut,
            emitted=outcome.emitted,
            after_stop=zero if outcome.after_stop is None else outcome.after_stop,
        )

    @classmethod
    def of_nothing(cls, outcome: Outcome) -> Verdict:
        """Return what `build` does where nothing was drafted."""
        zero = torch.zeros_like(outcome.emitted)
        after = zero if outcome.after_stop is None else outcome.after_stop
        return cls(zero, zero, zero, zero, emitted=outcome.emitted, after_stop=after)

    def tested(self) -> Tensor:
        """Return [B] int32: draft tokens whose acceptance was decided, i.e. `accepted` and the first rejected one."""
        return torch.minimum(self.accepted + 1, self.verified)
