"""Host state of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specplug.runtime.visible_text import tokens_before_stop
from specplug.types.plan import RequestStats
from specplug.types.request import Request
from specplug_transformers.generate_stream import TextStream
from specplug_transformers.params import SamplingParams
from specplug_transformers.processing import Processor

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class RequestState:
    """State of one request; compares by identity.

    Attributes:
        tokens: prompt and output.
        end_token_ids: ids that end the request; they belong to the output, but not to its text.
        room: tokens that the request may still emit.
        seed: seed of its random numbers for verification.
        processors: logits processors, applied at every draft position.
        stop_when: see `GenerateRequest`.
        stream: detokenises its output; None without a tokenizer.
        decode: returns the text of token ids; called when a stop string ends the request.
        cut: whether a stop string has ended the request.
        slot, generation: slot of the token table and its generation; -1 while the request waits.
        row: row of the key-value cache; -1 while the request waits.
        computed: positions whose keys and values are in the cache.
        was_running: whether the request has held a slot before.
        verified, accepted, rejected, steps: draft tokens, rejected drafts and target steps so far.
        new_tokens, new_text: output since the last `RequestOutput`.
    """

    request: Request
    params: SamplingParams
    tokens: list[int]
    end_token_ids: frozenset[int]
    room: int
    seed: int
    processors: Processor | None = None
    stop_when: Callable[[Sequence[int]], bool] | None = None
    stream: TextStream | None = None
    decode: Callable[[list[int]], str] = lambda ids: ""
    cut: bool = False
    slot: int = -1
    generation: int = -1
    row: int = -1
    computed: int = 0
    was_running: bool = False
    text: str = ""
    finish_reason: FinishReason | None = None
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    steps: int = 0
    new_tokens: list[int] = field(default_factory=list)
    new_text: str = ""

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not in the cache yet; 1 when the request can decode."""
        return self.length - self.computed

    @property
    def output(self) -> list[int]:
        """Tokens emitted so far."""
        return self.tokens[self.request.prompt_length :]

    @property
    def visible(self) -> int:
        """Upper bound on the tokens of prompt and output that the client saw, without those of a stop string."""
        output = self.output
        seen = tokens_before_stop(output, self.params.stop, self.decode) or 0 if self.cut else len(output)
        return self.request.prompt_length + seen

    def stats(self) -> RequestStats:
        """Return the request's statistics for planners."""
        return RequestStats(
            self.request.request_id,
            self.length,
            self.room,
            self.request.options.cap,
            verified=self.verified,
            accepted=self.accepted,
            rejected=self.rejected,
        )

    def draft_cap(self, draft_length: int) -> int:
        """Return the most draft tokens that the request itself allows, at most `draft_length`."""
        cap = self.request.options.cap
        return draft_length if cap is None else min(draft_length, cap)

    def clear_new_output(self) -> None:
        """Clear the new output after it has been returned to the caller."""
        self.new_tokens, self.new_text = [], ""

    def abort(self) -> None:
        """End the request as aborted."""
        self._flush()
        self.finish_reason = "abort"

    def extend(self, token_ids: list[int]) -> int:
        """Append emitted tokens until one ends the request; return how many were appended.

        Sets `finish_reason`.  Tokens after the end are dropped: no client sees them.
        """
        for count, token in enumerate(token_ids, 1):
            self.tokens.append(token)
            self.new_tokens.append(token)
            self.room -= 1
            if self._ends_with(token):
                return count
        return len(token_ids)

    def _ends_with(self, token: int) -> bool:
        if token in self.end_token_ids:
            self._flush()
            self.finish_reason = "stop"
        elif self.stop_when is not None and self.stop_when(self.tokens):
            self.cut = self._push(token)
            self._flush()
            self.finish_reason = "stop"
        elif self._push(token):
            self.cut, self.finish_reason = True, "stop"
        elif self.room <= 0:
            self._flush()
            self.finish_reason = "stop" if self.cut else "length"
        return self.finish_reason is not None

    def _push(self, token: int) -> bool:
        """Detokenise one token; return whether a stop string has appeared."""
        if self.stream is None:
            return False
        text, stopped = self.stream.push(token)
        self._add_text(text)
        return stopped

    def _flush(self) -> None:
        """Release the text that was held back, and record whether it contains a stop string."""
        if self.stream is not None:
            text, stopped = self.stream.finish()
            self.cut = self.cut or stopped
            self._add_text(text)

    def _add_text(self, text: str) -> None:
        self.text += text
        self.new_text += text
