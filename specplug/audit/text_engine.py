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
                answers += self._batch(batch, done)
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

    def _batch(self, probes: Sequence[Probe], done: Callable[[], None]) -> list[Answer]:
        if any(probe.messages for probe in probes):
            raise RequestError("chats, tools and reasoning are parsed by servers only")
        if any(probe.json_schema is not None for probe in probes):
            raise RequestError("the embedded engine has no JSON schemas")
        tokens: list[list[int]] = [[] for _ in probes]
        texts = [""] * len(probes)
        reasons: list[str | None] = [None] * len(probes)
        tops: list[list[dict[int, float]]] = [[] for _ in probes]
        for update in self._engine.stream([_request(probe) for probe in probes]):
            tokens[update.index] += update.token_ids
            texts[update.index] += update.text
            tops[update.index] += [dict(top) for top in update.top_logprobs]
            if update.finish_reason is not None:
                reasons[update.index] = update.finish_reason
                done()
        return [
            Answer(token_ids=tuple(ids), text=text, finish_reason=reason, top_logprobs=tuple(top))
            for ids, text, reason, top in zip(tokens, texts, reasons, tops, strict=True)
        ]


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
