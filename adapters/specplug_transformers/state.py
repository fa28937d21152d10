"""Host state of one request, and the text of its output: incremental detokenisation and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from specplug.runtime.ends import tokens_before_stop
from specplug.types.plan import RequestStats
from specplug.types.request import Request
from specplug_transformers.params import Processor, SamplingParams

_UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that do not form a whole character yet


class TextStream:
    """Incremental detokenisation of one request.

    Text is held back while it ends in half a character or in a prefix of a stop string.  A few earlier tokens are
    decoded along as lead-in, because many tokenizers treat the first token of a sequence differently.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._start = 0  # index of the first lead-in token
        self._read = 0  # tokens before this index are decoded
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """Add a token; return the text that is now final, and whether a stop string has appeared.

        The text ends before the stop string.
        """
        self._ids.append(token)
        self._held += self._decode_new()
        if (text := self._cut()) is not None:
            return text, True
        keep = self._undecided()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, False

    def finish(self) -> tuple[str, bool]:
        """Return the text still held back, and whether a stop string has appeared in it, as `push` does.

        Half a character at the end now counts as text, and may complete a stop string.
        """
        self._held += self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._read])) :]
        self._read = self._start = len(self._ids)
        if (text := self._cut()) is not None:
            return text, True
        text, self._held = self._held, ""
        return text, False

    def _cut(self) -> str | None:
        """Return the held text before the stop string that it completes first, and drop the rest; None without one."""
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        text, self._held = self._held[: min(found, key=itemgetter(0))[1]], ""
        return text

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _decode_new(self) -> str:
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _undecided(self) -> int:
        """Return the length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's output so far, and the part added since its previous output.

    Attributes:
        token_ids, text: everything emitted; the token or string that ended the request is in the ids but not in the
            text, which is empty without a tokenizer.
        new_token_ids, new_text: the part that this step added.
        finish_reason: "stop", "length", "abort", or None while it runs.
        steps: target steps so far; verified, accepted: draft tokens so far.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    new_token_ids: tuple[int, ...]
    new_text: str
    finish_reason: FinishReason | None
    steps: int
    verified: int
    accepted: int

    @property
    def finished(self) -> bool:
        """Whether this is the request's last output."""
        return self.finish_reason is not None


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

    def take_output(self) -> RequestOutput:
        """Return the current output; the next one will add to it."""
        new_tokens, new_text = tuple(self.new_tokens), self.new_text
        self.new_tokens, self.new_text = [], ""
        return RequestOutput(
            request_id=self.request.request_id,
            token_ids=tuple(self.output),
            text=self.text,
            new_token_ids=new_tokens,
            new_text=new_text,
            finish_reason=self.finish_reason,
            steps=self.steps,
            verified=self.verified,
            accepted=self.accepted,
        )

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
