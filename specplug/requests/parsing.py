"""Parsing of a request's specplug fields, with all checks, in the engine's front end.

`arguments` finds the fields in what the engine passes through, `schema` says what they may be, `references` makes
tokens of their texts, and `wire` carries the result to the scheduler.  Only token ids leave the front end.  A mistake
raises `RequestError`, which the front end answers with a 4xx.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from specplug.errors import RequestError, SpecplugError, quote, suggest
from specplug.input_errors import require_mapping, validate
from specplug.plugins.registry import default_registry
from specplug.requests import arguments, wire
from specplug.requests.clients import BusyError, Quota, RequestClient, Tenants
from specplug.requests.references import CHARACTERS_PER_TOKEN, Source, Tokenize, to_references
from specplug.requests.schema import RequestFields, as_list
from specplug.settings.checks import acceptance_thresholds
from specplug.settings.model import Limits
from specplug.settings.sources import ResolvedSettings
from specplug.text.request_tokenizer import RequestTokenizer
from specplug.types.request import Reference, RequestOptions, StoredDocument

INLINE_CHARACTERS = 8192
"""Most characters that are parsed on the event loop, a few milliseconds of work; larger requests go to a thread."""

ALLOWANCE = 1 << 18
"""Characters of all other fields: names, numbers and JSON's own."""

_TYPICAL_CHARACTERS = 4  # of a token, for texts that wait to be tokenised
_PLAIN_OPTIONS = ("enabled", "num_speculative_tokens", "proposer", "verifier", "store", "group")


class FieldParser:
    """Parses, checks and tokenises the specplug fields of one server's requests.

    Args:
        found: the server's settings.
        vocab_size: ids lie in [0, vocab_size).
        tokenizer: the tokenizer for reference texts.
        refusal: what all methods raise for a `RequestError`; the engine's front end answers it with a 400.
        busy: likewise for a `BusyError`, of requests that hold too many reference tokens; it is answered with a 429.
    """

    def __init__(
        self,
        found: ResolvedSettings,
        vocab_size: int,
        tokenizer: RequestTokenizer,
        refusal: type[RequestError] = RequestError,
        busy: type[Exception] = BusyError,
    ) -> None:
        settings = found.settings
        self._settings = settings
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._refusal = refusal
        self._busy = busy
        self._tenants = Tenants(settings.tenants)
        self._quota = Quota(settings.limits)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._proposers = () if settings.drafts_in_engine else (settings.proposer, *settings.extra_proposers)
        # The engine's own verifier is used unless the settings name one.
        self._verifiers = (settings.verifier,) if found.was_set("verifier") else ()
        self._thresholds = acceptance_thresholds(settings, default_registry()) if self._verifiers else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specplug-requests")

    def prepare_for_serving(self) -> None:
        """Do the one-time work that would otherwise delay the first requests."""
        self._tokenizer.copy()

    def with_prediction(self, extra_args: Mapping[str, Any] | None, prediction: object) -> dict[str, Any]:
        """Return the extra arguments with the request's own `prediction` added, unparsed.

        The engine's own drafter ignores predictions, as it does without specplug.
        """
        if self._settings.drafts_in_engine:
            return dict(extra_args or {})
        with self._refusals():
            return arguments.with_prediction(extra_args, prediction)

    def parse_fields(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's extra arguments with specplug's fields in their wire form.

        A `num_speculative_tokens` above the server's is lowered to the server's.
        """
        settings = self._settings
        with self._refusals():
            _refuse_large(extra_args, settings.limits)
            fields, rest = arguments.split(extra_args)
            options, references, tenant = parse_request_fields(
                fields,
                tokenize=partial(self._tokenizer, max_tokens=settings.limits.max_reference_tokens),
                vocab_size=self._vocab_size,
                limits=settings.limits,
                proposers=self._proposers,
                verifiers=self._verifiers,
                thresholds=self._thresholds,
            )
            self._tenants.refuse(tenant)
            if settings.drafts_in_engine:
                _refuse_texts(references=references, documents=options.documents, corpora=options.corpora)
        if options.num_speculative_tokens is not None:
            cap = min(options.num_speculative_tokens, settings.num_speculative_tokens)
            options = replace(options, num_speculative_tokens=cap)
        return {**rest, wire.WIRE_KEY: wire.encode(options, references, tenant)}

    async def parse_in_thread(self, extra_args: Mapping[str, Any], client: str | None = None) -> dict[str, Any]:
        """Do the same without blocking the event loop: parse large requests in a thread, one at a time.

        Clients take turns, so that one with many large requests delays the others by one of them.  `client` is a
        digest, "" if there is none; None for a program in this process.
        """
        size = arguments.characters(extra_args)
        if size <= INLINE_CHARACTERS:
            return self.parse_fields(extra_args)
        waiting = min(size // _TYPICAL_CHARACTERS, self._settings.limits.max_reference_tokens)
        release = None if client is None else self.reserve(client, waiting)
        try:
            async with self._turns.setdefault(client or "", asyncio.Lock()):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self.parse_fields, extra_args)
        finally:
            if release is not None:
                release()

    def reserve(self, client: str, tokens: int) -> Callable[[], None]:
        """Count reference tokens in memory as a client's until the returned function is called."""
        with self._refusals():
            return self._quota.reserve(client, tokens)

    async def admit(
        self, extra_args: Mapping[str, Any], client: RequestClient | None, copies: int, holder: object = None
    ) -> dict[str, Any]:
        """Return parsed extra arguments, whose references count as the client's until its HTTP request ends.

        With a `holder`, which can be weakly referenced, they count until that is gone, as of a request that goes on
        after its HTTP request.  They count once for each of the engine's requests that the HTTP request becomes,
        `copies`.  A program in this process, None, has no quota.
        """
        if client is None:
            return await self.parse_in_thread(extra_args)
        parsed = await self.parse_in_thread(extra_args, client.digest or "")
        release = self.reserve(client.digest or "", copies * wire.reference_tokens(parsed))
        if holder is None:
            client.at_end(release)
        else:
            weakref.finalize(holder, release)
        return parsed

    def tenant_of(self, client: RequestClient) -> str | None:
        """Return the tenant that the server assigns to a client."""
        with self._refusals():
            return self._tenants.of(client.headers)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise specplug's own errors as those of the engine's front end."""
        try:
            yield
        except RequestError as error:
            raise (self._busy if isinstance(error, BusyError) else self._refusal)(str(error)) from None


def parse_request_fields(
    raw: Mapping[str, Any] | None,
    *,
    tokenize: Tokenize,
    vocab_size: int,
    limits: Limits,
    proposers: Collection[str] | None = None,
    verifiers: Collection[str] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Check one request's fields and convert them to the form that plug-ins read.

    Args:
        raw: the fields; None for a request that has none.
        tokenize: maps a text to ids of the target's vocabulary, without special tokens.
        vocab_size: ids must lie in [0, vocab_size).
        limits: upper limits on what a request may carry.
        proposers: when given, the names that the server has loaded; `proposer` must be one of them.
        verifiers: likewise, for `verifier`.
        thresholds: the server's `acceptance_thresholds`; None if its verifier takes none.

    Returns:
        The options, the references (prediction first, empty ones omitted), and the tenant.

    Raises:
        RequestError: fields are unknown, bad or too large.
    """
    raw = require_mapping({} if raw is None else raw, RequestError, "malformed request fields")
    has_prediction = raw.get("prediction") is not None
    _check_count("references", len(as_list(raw.get("references"))) + has_prediction, limits.max_references)
    _check_count("documents", len(as_list(raw.get("documents"))), limits.max_documents)
    _check_count("corpora", len(as_list(raw.get("corpora"))), limits.max_corpora)
    fields = validate(RequestFields, raw, RequestError, "request field")
    if proposers is not None and fields.proposer is not None and fields.proposer not in proposers:
        remedy = f"{suggest(fields.proposer, proposers)}. The server's extra_proposers names more"
        raise _refused("proposer", "this server has not loaded the proposer", fields.proposer, remedy=remedy)
    if verifiers is not None and fields.verifier is not None and fields.verifier not in verifiers:
        expected = " or ".join(map(repr, verifiers)) or "none, as the engine's own verifier serves"
        raise _refused("verifier", "this server does not verify with it", fields.verifier, expected=expected)
    options = RequestOptions(
        **{name: getattr(fields, name) for name in _PLAIN_OPTIONS},
        acceptance_threshold=_threshold(fields, thresholds),
        corpora=tuple(dict.fromkeys(fields.corpora)),
        documents=tuple(dict.fromkeys(StoredDocument(each.name, each.corpus) for each in fields.documents)),
    )
    return options, to_references(_sources(fields), tokenize, vocab_size, limits.max_reference_tokens), fields.tenant


def _check_count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise RequestError.build(
            f"too many {field} in request field {field!r}",
            found=f"{count}, the prediction included" if field == "references" else str(count),
            expected=f"at most {limit}",
            remedy=f"Send fewer, or raise the server's limits.max_{field}",
        )


def _refused(field: str, what: str, value: object, **about: str) -> SpecplugError:
    return RequestError.build(what, who=f"request field {field!r}", found=quote(value), **about)  # type: ignore[arg-type]


def _threshold(fields: RequestFields, named: Mapping[str, float] | None) -> float | None:
    value = fields.acceptance_threshold
    refused = partial(_refused, "acceptance_threshold")
    if value is None:
        return None
    if named is None:
        remedy = "Omit it, or use a server whose settings name a verifier that does; `specplug list` shows them"
        raise refused("this server's verifier takes no threshold", value, remedy=remedy)
    if fields.verifier is None:
        what = "a threshold applies only to requests that name the server's lossy verifier in 'verifier'"
        raise refused(what, value, remedy="Name the verifier too, or omit the threshold")
    if isinstance(value, str):
        if value not in named:
            expected = ", ".join(map(repr, named)) or "a number; the server's acceptance_thresholds names none"
            raise refused("the server has no such threshold", value, expected=expected)
        return named[value]
    if not 0 < value <= 1:
        raise refused("threshold out of range", value, expected="more than 0, at most 1")
    return value


def _sources(fields: RequestFields) -> list[Source]:
    """Return the texts in search order, without empty ones."""
    sources: list[Source] = []
    if fields.prediction is not None:
        text = "".join(part.text for part in fields.prediction.content)
        sources.append(("prediction", "prediction", text))
    for index, reference in enumerate(fields.references):
        content = reference.token_ids if reference.text is None else reference.text
        assert content is not None  # ReferenceField holds one of them
        sources.append((f"references.{index}", reference.name or f"reference {index + 1}", content))
    return [source for source in sources if len(source[2])]


def _refuse_large(extra_args: Mapping[str, Any], limits: Limits) -> None:
    """Refuse fields that cannot be within the limits before anything is decoded."""
    limit = CHARACTERS_PER_TOKEN * limits.max_reference_tokens + ALLOWANCE
    if arguments.characters(extra_args) > limit:
        raise RequestError.build(
            "request fields are too large",
            found=f"more than {limit} characters",
            expected=f"at most {limit}, of which {CHARACTERS_PER_TOKEN} for each token of references",
            remedy="Send less text, or raise the server's limits.max_reference_tokens",
        )


def _refuse_texts(**texts: Collection[object]) -> None:
    """Refuse texts to draft from, on a server whose own drafter would not read them."""
    if any(texts.values()):
        raise RequestError.build(
            "this server drafts with the engine's own drafter, which reads no texts of requests",
            who="request fields",
            found=" and ".join(name for name, entries in texts.items() if entries),
            remedy="Omit them, or use a server that drafts with one of specplug's proposers",
        )
