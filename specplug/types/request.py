"""A request as plug-ins see it, and what happens to requests and engines while they run.  Host data only."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.errors import ContractError


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Text that the answer is likely to copy from, given with one request.  Equal by value.

    Attributes:
        token_ids: [n] int32, read-only: the text in the target's vocabulary; tokenised by the front end, so that
            workers see ids only.
        name: what the user called it, for traces.

    Raises:
        ContractError: `token_ids` is no such array; `Reference.of` makes one of any sequence of integers.
    """

    token_ids: npt.NDArray[np.int32]
    name: str = "reference"

    def __post_init__(self) -> None:
        ids = self.token_ids
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int32:
            found = f"{list(ids.shape)} {ids.dtype}" if isinstance(ids, np.ndarray) else type(ids).__name__
            raise ContractError.build("malformed reference", found=found, expected="an array, [n] int32")
        if ids.flags.writeable:
            ids = ids.view()
            ids.flags.writeable = False
            object.__setattr__(self, "token_ids", ids)

    @classmethod
    def of(cls, token_ids: Sequence[int] | npt.NDArray[np.integer], name: str = "reference") -> Reference:
        """Make a reference of any sequence of integers."""
        return cls(np.array(token_ids, dtype=np.int32), name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            return NotImplemented
        return self.name == other.name and np.array_equal(self.token_ids, other.token_ids)

    def __hash__(self) -> int:
        return hash((self.name, self.token_ids.size))


class StoredDocument(NamedTuple):
    """A document of the server's corpora, by name; corpus None looks in all corpora of the request's tenant."""

    name: str
    corpus: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The per-request settings that plug-ins read, already parsed and checked.

    Attributes:
        enabled: false switches drafting off for this request.
        num_speculative_tokens: cap on this request's draft length; None leaves it to the policy.
        proposer: name of the proposer to use; None is the server's.
        verifier: the server's verifier, which the request asks for by name: a lossy one serves no other requests.
        store: whether the finished response may enter a response memory.
        corpora: names of stored corpora to draft from first.
        documents: stored documents that the answer is likely to copy from.  These and `corpora` are names only, each
            once and in the order given: the store may not have them, now or any more, which is no error.
    """

    enabled: bool = True
    num_speculative_tokens: int | None = None
    proposer: str | None = None
    verifier: str | None = None
    store: bool = True
    corpora: tuple[str, ...] = ()
    documents: tuple[StoredDocument, ...] = ()

    @property
    def cap(self) -> int | None:
        """Most draft tokens per step that the request allows; None when it set no limit."""
        return self.num_speculative_tokens if self.enabled else 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that bear on drafting.  temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request's host-side description.

    Attributes:
        request_id: the engine's own name for it.
        prompt_length: tokens in the prompt.
        max_tokens: most tokens it may emit.
        isolation_key: whatever is remembered across requests is kept apart by this key: of the tenant, the engine's own
            isolation key, the client's API key and the LoRA adapter's id, as far as they are known.
        grammar: whether a grammar constrains the output.
        multimodal: whether the prompt holds images, audio or embeddings (see `BatchView.barriers`).
    """

    request_id: str
    prompt_length: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    options: RequestOptions = field(default_factory=RequestOptions)
    references: tuple[Reference, ...] = ()
    tenant: str | None = None
    isolation_key: str = ""
    lora_id: int | str | None = None
    grammar: bool = False
    multimodal: bool = False

    @property
    def may_share(self) -> bool:
        """Whether a response memory may read or learn from this request.

        Engines key the verifier's randomness by (seed, position): a remembered answer of the same seed would be drawn
        twice with the same random numbers, which doubles its probability.
        """
        return self.options.store and not (self.sampling.seed is not None and self.sampling.temperature > 0)


class Lifecycle(enum.Enum):
    """What can happen to a request."""

    STARTED = "started"
    STARTED_DECODE_SIDE = "started on the decode side"  # prefilled elsewhere: the first step has no prefill
    RESUMED = "resumed"
    PREEMPTED = "preempted"  # may be the last that is heard of it; `RESUMED` brings the whole request again
    UPDATED = "updated"  # same id, new prompt
    FINISHED = "finished"
    ABORTED = "aborted"


BEGINS = frozenset({Lifecycle.STARTED, Lifecycle.STARTED_DECODE_SIDE, Lifecycle.RESUMED, Lifecycle.UPDATED})
"""What a request takes a slot with, in a new generation of it."""

EngineEventKind = Literal["cache flushed", "weights changed", "sleep", "wake"]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """Something happened to one request; `slot` and `generation` name its place while it holds one.

    Attributes:
        visible: tokens of prompt and output, from the first of the prompt, that the client saw at most; known when a
            request ends (`FINISHED`, `ABORTED`).  None where it is not known: nothing is to be remembered then.  The
            slot's text can be longer, where steps went on past the end or a stop string was cut from the text, and
            shorter than this by what the last step emitted, which engines may tell by a verdict only.
    """

    kind: Lifecycle
    request: Request
    slot: int
    generation: int
    visible: int | None = None


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something happened to the whole engine."""

    kind: EngineEventKind


Event = RequestEvent | EngineEvent
