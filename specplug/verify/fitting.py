"""FittedVerifier: converts drafts to the distributions that a verifier declares."""

from __future__ import annotations

from specplug.interfaces import Verifier
from specplug.types.caps import VerifierCaps
from specplug.types.draft import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification


class FittedVerifier(Verifier):
    """A wrapper that passes one-hot drafts to a verifier in place of distributions that it does not declare.

    Any token can be verified losslessly as one-hot, whatever distribution it was drawn from.  A verifier that ignored
    a draft's distribution would not know which rule applies, so this is not left to each engine's adapter.
    """

    def __init__(self, verifier: Verifier, caps: VerifierCaps) -> None:
        self._verifier, self._takes = verifier, caps.distributions

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft and add one token."""
        fitting = draft if draft.distribution in self._takes else draft.as_one_hot()
        return self._verifier.verify(fitting, target, sampling, uniforms)
