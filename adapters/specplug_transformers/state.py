"""Host state of one request, and the text of its output: incremental detokenisation and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from specplug.steps.stops import tokens_before_stop
from specplug.types.plan import RequestStats
from specplug.types.request import Request
from specplug.types.step import StepPlan
from specplug_transformers.params import Processor, SamplingParams

_UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that do not form a whole character yet


class TextStream:
    """Incremental detokenisation of one request.

    Text is held back while it ends in half a character or in a prefix of a stop string.  A few earlier tokens are
    decoded along as lead-in, because many tokenizers treat the first token of a sequence differently.

    Attributes:
        text: the text that is final; it ends before a stop string.
        is_cut: whether a stop string has appeared.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.text = ""
        self.is_cut = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._start = 0  # index of the first lead-in token
        self._read = 0  # tokens before this index are decoded
        self._pending = ""

    def add_token(self, token: int) -> bool:
        """Add a token; return whether a stop string has appeared."""
        self._ids.append(token)
        self._pending += self._decode_new()
        self._release(keep=self._undecided())
        return self.is_cut

    def finish(self) -> None:
        """Release the text still held back.

        Half a character at the end now counts as text, and may complete a stop string.
        """
        if not self.is_cut:
            read = len(self.decode(self._ids[self._start : self._read]))
            self._pending += self.decode(self._ids[self._start :])[read:]
            self._read = self._start = len(self._ids)
            self._release(keep=0)

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _release(self, keep: int) -> None:
        """Release what is held, up to the stop string that it completes first; without one, all but `keep` letters."""
        found = [(at + len(stop), at) for stop in self._stop if (at := self._pending.find(stop)) >= 0]
        self.is_cut = bool(found)
        end = min(found, key=itemgetter(0))[1] if found else len(self._pending) - keep
        self.text = self.text + self._pending[:end]
        self._pending = "" if found else self._pending[end:]

    def _decode_new(self) -> str:
        before = self.decode(self._ids[self._start : self._read])
        now = self.decode(self._ids[self._start :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start = self._read
        self._read = len(self._ids)
        return now[len(before) :]

    def _undecided(self) -> int:
        """Return the length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._pending)), 0, -1):
            if any(stop.startswith(self._pending[-size:]) for stop in self._stop):
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
        slot: slot of the token table; -1 while the request waits.
        row: row of the key-value cache; it may become a lower one.
        computed: positions whose keys and values are in the cache.
        verified, accepted, rejected, steps: draft tokens, rejected drafts and target steps so far.
        taken: tokens and letters of the output that `take_output` has returned.
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
    slot: int = -1
    row: int = -1
    computed: int = 0
    finish_reason: FinishReason | None = None
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    steps: int = 0
    taken: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self.tokens)

    @property
    def pending_tokens(self) -> int:
        """Tokens whose keys and values are not in the cache yet; 1 when the request can decode."""
        return self.length - self.computed

    @property
    def output(self) -> list[int]:
        """Tokens emitted so far."""
        return self.tokens[self.request.prompt_length :]

    @property
    def visible_length(self) -> int:
        """Upper bound on the tokens of prompt and output that the client saw, without those of a stop string."""
        output = self.output
        stream = self.stream
        if stream is None or not stream.is_cut:
            return len(self.tokens)
        return self.request.prompt_length + (tokens_before_stop(output, self.params.stop, stream.decode) or 0)

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

    def draft_cap(self, plan: StepPlan) -> int:
        """Return the maximum number of draft tokens that a plan and the request itself allow."""
        length = plan.draft_length_for(self.request.request_id)
        cap = self.request.options.cap
        return length if cap is None else min(length, cap)

    def take_output(self) -> RequestOutput:
        """Return the current output; the next one will add to it."""
        output = tuple(self.output)
        text = "" if self.stream is None else self.stream.text
        tokens, letters = self.taken
        self.taken = len(output), len(text)
        return RequestOutput(
            request_id=self.request.request_id,
            token_ids=output,
            text=text,
            new_token_ids=output[tokens:],
            new_text=text[letters:],
            finish_reason=self.finish_reason,
            steps=self.steps,
            verified=self.verified,
            accepted=self.accepted,
        )

    def extend(self, token_ids: list[int]) -> int:
        """Append emitted tokens until one ends the request; return how many were appended.

        Sets `finish_reason`.  Tokens after the end are dropped: no client sees them.
        """
        for count, token in enumerate(token_ids, 1):
            self.tokens.append(token)
            self.room -= 1
            if self._ends_with(token):
                return count
        return len(token_ids)

    def _ends_with(self, token: int) -> bool:
        if token in self.end_token_ids:
            self.end("stop")
            return True
        is_stopped = self.stop_when is not None and self.stop_when(self.tokens)
        is_cut = self.stream is not None and self.stream.add_token(token)
        if is_stopped or is_cut:
            self.end("stop")
        elif self.room <= 0:
            self.end("length")
        return self.finish_reason is not None

    def end(self, reason: FinishReason) -> None:
        """Set `finish_reason`, and release the text that was held back, which may complete a stop string."""
        self.finish_reason = reason
        if self.stream is not None:
            self.stream.finish()
            if self.stream.is_cut and reason == "length":
                self.finish_reason = "stop"
