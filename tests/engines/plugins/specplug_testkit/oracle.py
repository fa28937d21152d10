"""A proposer that knows the answers."""

from __future__ import annotations

import numpy as np

from specplug.host import HostDraft, HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.types.request import Request
from specplug_testkit.options import OracleOptions


class Oracle(HostProposer):
    """Drafts the answer's next tokens; the answer is the request's first reference, which holds it alone."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: OracleOptions = context.options or OracleOptions()

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> HostDraft:
        if request is None or not request.references:
            return ()
        answer = np.asarray(request.references[0].token_ids, dtype=np.int32)
        position = len(tokens) - request.prompt_length
        drafted = answer[position : position + limit].copy()
        every = self._options.error_every
        if every:
            wrong = (np.arange(position, position + drafted.size) + 1) % every == 0
            drafted[wrong] = (drafted[wrong] + 1) % self.context.vocab_size
        return HostDraft(drafted, 0.9)
