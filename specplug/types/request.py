"""Requests as plug-ins see them, and the events of requests and engines.  Host data only."""

from __future__ import annotations

import enum
import hashlib
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
        token_ids: [n] int32, read-only: the text in the target's vocabulary.  The front end tokenises it, so workers
            see only ids.
        name: the user's name for it, for traces.

    Raises:
        ContractError: `token_ids` is not such an array; `Reference.of` accepts any sequence of integers.
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
        """Return a reference to any sequence of integers."""
        return cls(np.array(token_ids, dtype=np.int32), name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            return NotImplemented
        return self.name == other.name and np.array_equal(self.token_ids, other.token_ids)

    def __hash__(self) -> int:
        return hash((self.name, self.token_ids.size))


class StoredDocument(NamedTuple):
    """A document of the server's corpora, by name; corpus None means all corpora of the request's tenant."""

    name: str
    corpus: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The per-request settings that plug-ins read, already parsed and checked.

    Attributes:
        enabled: false switches drafting off for this request.
        num_speculative_tokens: cap on this request's draft length; None leaves it to the policy.
        proposer: name of the proposer to use; None is the server's default.
        verifier: name of the server's verifier, if the request enables it; a lossy one runs only for such requests.
        acceptance_threshold: threshold of a lossy verifier, in (0, 1]; None leaves it to the verifier's settings.
        store: true if the finished response may enter a response memory.
        group: name of a group whose requests draft from each other while they run; None: those on the same prompt do.
        corpora: names of stored corpora to draft from first.
        documents: stored documents that the answer is likely to copy from.  `documents` and `corpora` hold only names,
            without duplicates and in the order given; a name that the store does not have is not an error.
    """

    enabled: bool = True
    num_speculative_tokens: int | None = None
    proposer: str | None = None
    verifier: str | None = None
    acceptance_threshold: float | None = None
    store: bool = True
    group: str | None = None
    corpora: tuple[str, ...] = ()
    documents: tuple[StoredDocument, ...] = ()

    @property
    def cap(self) -> int | None:
        """The most draft tokens per step that the request allows; None if it set no limit."""
        return self.num_speculative_tokens if self.enabled else 0


def digest_of(token_ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
    """Return a digest of tokens that others do not have."""
    return hashlib.blake2b(np.asarray(token_ids, np.int64).tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Request:
    """One request's host-side description.

    Attributes:
        request_id: the engine's id of the request.
        prompt_length: number of tokens in the prompt.
        max_tokens: the most tokens that it may emit.
        temperature: 0 is greedy.
        isolation_key: separates everything that is remembered across requests.  It is derived from the tenant, the
            engine's own isolation key, the client's API key and the LoRA adapter's id, as far as they are known.
        grammar: true if a grammar constrains the output, or the engine cuts drafts by their tokens for another reason.
        prompt_digest: `digest_of` the prompt, equal for requests on the same prompt; empty if its tokens are not known.
    """

    request_id: str
    prompt_length: int
    max_tokens: int
    temperature: float = 0.0
    options: RequestOptions = field(default_factory=RequestOptions)
    references: tuple[Reference, ...] = ()
    tenant: str | None = None
    isolation_key: str = ""
    grammar: bool = False
    prompt_digest: str = ""

    @property
    def may_share(self) -> bool:
        """True if a response memory may read or learn from this request."""
        return self.options.store


class Lifecycle(enum.Enum):
    """Kinds of request events."""

    STARTED = "started"
    RESUMED = "resumed"
    PREEMPTED = "preempted"  # may be the request's last event; `RESUMED` carries the whole request again
    UPDATED = "updated"  # same id, new prompt
    FINISHED = "finished"
    ABORTED = "aborted"


BEGINS = frozenset({Lifecycle.STARTED, Lifecycle.RESUMED, Lifecycle.UPDATED})
"""Events with which a request takes a slot, in a new generation of the slot."""

EngineEventKind = Literal["cache flushed", "weights changed", "sleep", "wake"]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """An event of one request; `slot` and `generation` identify its slot while it holds one.

    Attributes:
        visible: an upper bound on the tokens that the client saw, counted from the first prompt token; known when a
            request ends (`FINISHED`, `ABORTED`).  None if not known: then remember nothing.  The slot's text can be
            longer if steps ran past the end or a stop string was cut from the text.  It can be shorter by the tokens of
            the last step, which some engines report only in a verdict.
    """

    kind: Lifecycle
    request: Request
    slot: int
    generation: int
    visible: int | None = None


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """An event of the whole engine."""

    kind: EngineEventKind


Event = RequestEvent | EngineEvent
