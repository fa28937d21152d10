"""An audit's side over the embedded engine, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specplug.audit.probe import DraftCounts, Probe
from specplug.client.answers import Answer
from specplug.errors import RequestError
from specplug.plugins.embedded import TextEngine, TextRequest


class TextEngineSide:
    """A `Side` over an engine, whose counts are read if it `drafts`; `form` makes a prompt of a text."""

    def __init__(self, engine: TextEngine, *, drafts: bool, form: Callable[[str], Any] = str) -> None:
        self._engine, self._drafts, self._form = engine, drafts, form

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""
        prompt = self._form(text)
        return tuple(self._engine.tokenize(prompt) if isinstance(prompt, str) else prompt)

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        """Answer probes in batches of `together`; chats and JSON schemas need servers."""
        answers: list[Answer] = []
        for first in range(0, len(probes), together):
            batch = probes[first : first + together]
            try:
                answers += self._batch(batch)
            except RequestError as error:
                answers += [Answer(error=str(error), refused=True) for _ in batch]
            for _ in batch:
                done()
        return answers

    def draft_counts(self) -> DraftCounts | None:
        """Return the engine's counts; None for an engine that does not speculate."""
        if not self._drafts:
            return None
        snapshot = self._engine.metrics.snapshot()
        return DraftCounts(snapshot.total.accepted, snapshot.total.rejected, snapshot.lossy.departed)

    def describe(self) -> str:
        """Return model and engine in one line."""
        return self._engine.describe()

    def _batch(self, probes: Sequence[Probe]) -> list[Answer]:
        if any(probe.messages for probe in probes):
            raise RequestError("chats, tools and reasoning are parsed by servers only")
        if any(probe.json_schema is not None for probe in probes):
            raise RequestError("the embedded engine has no JSON schemas")
        answers = [Answer()] * len(probes)
        for update in self._engine.stream([_request(probe) for probe in probes]):
            before = answers[update.index]
            answers[update.index] = Answer(
                token_ids=(*before.token_ids, *update.token_ids),
                text=before.text + update.text,
                finish_reason=update.finish_reason or before.finish_reason,
                top_logprobs=(*before.top_logprobs, *update.top_logprobs),
            )
        return answers


def _request(probe: Probe) -> TextRequest:
    references = {"references": [{"token_ids": list(probe.expected)}]} if probe.expected else {}
    return TextRequest(
        prompt=probe.prompt,
        max_tokens=probe.max_tokens,
        temperature=probe.temperature,
        top_k=probe.top_k,
        seed=probe.seed,
        stop=probe.stop,
        top_logprobs=probe.top_logprobs,
        specplug={**probe.specplug, **references},
    )
