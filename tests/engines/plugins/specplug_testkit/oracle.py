"""A proposer that knows the answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from specplug.host import HostDraft, HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.types.request import Request
from specplug_testkit.options import OracleOptions

NOTHING: Tokens = np.zeros(0, dtype=np.int32)


class Oracle(HostProposer):
    """Drafts the answer's next tokens.

    Answers are the request's first reference, which holds the answer alone, else the texts of the file, of which the
    first that begins with the request's tokens counts.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: OracleOptions = context.options or OracleOptions()
        path = self._options.path
        texts = [] if path is None else json.loads(Path(path).read_text())
        self._texts: list[Tokens] = [np.array(text, dtype=np.int32) for text in texts]

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> HostDraft:
        answer, position = self._answer(tokens, request)
        lengths = self._options.lengths
        if lengths:
            limit = min(limit, lengths[position % len(lengths)])
        drafted = answer[position : position + limit].copy()
        every = self._options.error_every
        if every:
            wrong = (np.arange(position, position + drafted.size) + 1) % every == 0
            drafted[wrong] = (drafted[wrong] + 1) % self.context.vocab_size
        return HostDraft(drafted, 0.9)

    def _answer(self, tokens: Tokens, request: Request | None) -> tuple[Tokens, int]:
        """Return a text, and where in it the request stands."""
        if request is not None and request.references:
            reference = np.asarray(request.references[0].token_ids, dtype=np.int32)
            return reference, len(tokens) - request.prompt_length
        for text in self._texts:
            if text.size > tokens.size and np.array_equal(text[: tokens.size], tokens):
                return text, tokens.size
        return NOTHING, 0
