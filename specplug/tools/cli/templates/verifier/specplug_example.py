"""A verifier for specplug."""

import specplug
import torch
from specplug.verify.target import target_probs


class Example(specplug.Verifier):
    """Draws a token from the target at every place, and keeps the draft as far as it agrees with them."""

    def __init__(self, context: specplug.PluginContext) -> None:
        pass

    def verify(
        self,
        draft: specplug.Draft,
        target: specplug.TargetLogits,
        sampling: specplug.SamplingBatch,
        uniforms: specplug.Uniforms,
    ) -> specplug.Verification:
        places = torch.arange(draft.draft_length + 1, device=draft.device)
        lengths = draft.lengths[:, None]
        logits = target.at(torch.minimum(places, lengths))
        probs = target_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        below = probs.double().cumsum(-1)
        drawn = (below <= uniforms.draw[:, :, None] * below[:, :, -1:]).sum(-1).clamp(max=below.shape[-1] - 1)
        # Your own rule goes here: which draft tokens are accepted, and which token follows them?
        agrees = (drawn[:, :-1] == draft.token_ids) & (places[:-1] < lengths)
        accepted = agrees.int().cumprod(1).sum(1, dtype=torch.int32)
        token_ids = torch.where(places <= accepted[:, None], drawn, -1).int()
        return specplug.Verification(token_ids, accepted)


@specplug.hookimpl
def specplug_register_verifiers(register):
    caps = specplug.VerifierCaps(lossless=True)
    register(
        specplug.VerifierSpec(name="example", factory="specplug_example:Example", summary="draws first", caps=caps)
    )
