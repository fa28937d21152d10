"""A proposer for specplug."""

import numpy as np
import specplug


class Example(specplug.HostProposer):
    """Drafts what followed the last token when it occurred before."""

    def draft(self, tokens: np.ndarray, limit: int, request: specplug.Request | None) -> specplug.HostDraft:
        # Your own idea goes here: what may follow `tokens`, the request's text so far?
        earlier = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
        if not earlier.size:
            return specplug.HostDraft([])
        return specplug.HostDraft(tokens[earlier[-1] :][:limit], confidence=0.5)


@specplug.hookimpl
def specplug_register_proposers(register):
    caps = specplug.ProposerCaps(needs_host=True)
    register(
        specplug.ProposerSpec(name="example", factory="specplug_example:Example", summary="repeats itself", caps=caps)
    )
