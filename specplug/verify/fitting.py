"""Drafts made to fit what a verifier declares that it takes."""

from __future__ import annotations

from specplug.interfaces import Verifier
from specplug.types.caps import VerifierCaps
from specplug.types.draft import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification


class FittedVerifier(Verifier):
    """A verifier that is handed one-hot drafts in place of distributions that it does not declare.

    A token is verified losslessly as one-hot whatever distribution it was drawn from.  A verifier that ignored the
    distribution of a draft would not know which rule applies, so it is not left to each engine's adapter.
    """

    def __init__(self, verifier: Verifier, caps: VerifierCaps) -> None:
        self._verifier, self._takes = verifier, caps.distributions

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft and add one token."""
        fitting = draft if draft.distribution in self._takes else draft.as_one_hot()
        return self._verifier.verify(fitting, target, sampling, uniforms)
