"""Parser that turns a request's specplug fields, as the user wrote them, into the wire form sent to the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from specplug.errors import RequestError
from specplug.plugins.registry import default_registry
from specplug.requests import arguments, wire
from specplug.requests.clients import BusyError, Quota, RequestClient, Tenants
from specplug.requests.parsing import CHARACTERS_PER_TOKEN, parse_request_fields
from specplug.settings.sources import ResolvedSettings, acceptance_thresholds
from specplug.text.request_tokenizer import RequestTokenizer

INLINE_CHARACTERS = 8192
"""Most characters that are parsed on the event loop, a few milliseconds of work; larger requests go to a thread."""

_TYPICAL_CHARACTERS = 4  # of a token, for texts that wait to be tokenised

ALLOWANCE = 1 << 18
"""Characters of all other fields: names, numbers and JSON's own."""


class FieldParser:
    """Parses, checks and tokenises the specplug fields of one server's requests.

    Args:
        found: the server's settings.
        vocab_size: ids lie in [0, vocab_size).
        tokenizer: the tokenizer for reference texts.
        refusal: what all methods raise for a `RequestError`; the engine's front end answers it with a 400.
        busy: likewise for a `BusyError`, of requests that hold too many reference tokens; it is answered with a 429.

    Attributes:
        tenants: the tenants that the server assigns.
    """

    def __init__(
        self,
        found: ResolvedSettings,
        vocab_size: int,
        tokenizer: RequestTokenizer,
        refusal: type[RequestError] = RequestError,
        busy: type[Exception] = BusyError,
    ) -> None:
        self._refusal = refusal
        self._busy = busy
        self.tenants = Tenants(found.settings.tenants)
        self._quota = Quota(found.settings.limits)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._settings = found.settings
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._drafts = not found.settings.drafts_in_engine
        self._proposers = (found.settings.proposer, *found.settings.extra_proposers) if self._drafts else ()
        # The engine's own verifier is used unless the settings name one.
        self._verifiers = (found.settings.verifier,) if found.was_set("verifier") else ()
        self._thresholds = acceptance_thresholds(found.settings, default_registry()) if self._verifiers else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specplug-requests")

    def prepare_for_serving(self) -> None:
        """Do the one-time work that would otherwise delay the first requests."""
        self._tokenizer.copy()

    def with_prediction(self, extra_args: Mapping[str, Any] | None, prediction: object) -> dict[str, Any]:
        """Return the extra arguments with the request's own `prediction` added, unparsed.

        The engine's own drafter ignores predictions, as it does without specplug.
        """
        if not self._drafts:
            return dict(extra_args or {})
        with self._refusals():
            return arguments.with_prediction(extra_args, prediction)

    def parsed(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's extra arguments with specplug's fields in their wire form.

        A `num_speculative_tokens` above the server's is lowered to the server's.
        """
        limits = self._settings.limits
        with self._refusals():
            self._refuse_large(extra_args)
            given, rest = arguments.split(extra_args)
            options, references, tenant = parse_request_fields(
                given,
                tokenize=partial(self._tokenizer, most=limits.max_reference_tokens),
                vocab_size=self._vocab_size,
                limits=limits,
                proposers=self._proposers,
                verifiers=self._verifiers,
                thresholds=self._thresholds,
            )
            self.tenants.refuse(tenant)
            texts = {"references": references, "documents": options.documents, "corpora": options.corpora}
            if not self._drafts and any(texts.values()):
                raise RequestError.build(
                    "this server drafts with the engine's own drafter, which reads no texts of requests",
                    who="request fields",
                    found=" and ".join(name for name, entries in texts.items() if entries),
                    remedy="Omit them, or use a server that drafts with one of specplug's proposers",
                )
        cap = options.num_speculative_tokens
        if cap is not None:
            options = replace(options, num_speculative_tokens=min(cap, self._settings.num_speculative_tokens))
        return {**rest, wire.WIRE_KEY: wire.encode(options, references, tenant)}

    async def parse_in_thread(self, extra_args: Mapping[str, Any], client: str | None = None) -> dict[str, Any]:
        """Do the same without blocking the event loop: parse large requests in a thread, one at a time.

        Clients take turns, so that one with many large requests delays the others by one of them.  `client` is a
        digest, "" if there is none; None for a program in this process.
        """
        size = arguments.characters(extra_args)
        if size <= INLINE_CHARACTERS:
            return self.parsed(extra_args)
        most = self._settings.limits.max_reference_tokens  # of what has more nothing is kept
        release = None if client is None else self.hold(client, min(size // _TYPICAL_CHARACTERS, most))
        try:
            async with self._turns.setdefault(client or "", asyncio.Lock()):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self.parsed, extra_args)
        finally:
            if release is not None:
                release()

    def hold(self, client: str, tokens: int) -> Callable[[], None]:
        """Count reference tokens in memory as a client's until the returned function is called."""
        with self._refusals():
            return self._quota.hold(client, tokens)

    async def admitted(
        self, extra_args: Mapping[str, Any], client: RequestClient | None, copies: int
    ) -> dict[str, Any]:
        """Return parsed extra arguments, whose references count as the client's until its HTTP request ends.

        They count once for each of the engine's requests that the HTTP request becomes, `copies`.  A program in this
        process, None, has no quota.
        """
        if client is None:
            return await self.parse_in_thread(extra_args)
        parsed = await self.parse_in_thread(extra_args, client.digest or "")
        client.at_end(self.hold(client.digest or "", copies * wire.reference_tokens(parsed)))
        return parsed

    def tenant_of(self, client: RequestClient) -> str | None:
        """Return the tenant that the server assigns to a client."""
        with self._refusals():
            return self.tenants.of(client.headers)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise specplug's own errors as those of the engine's front end."""
        try:
            yield
        except RequestError as error:
            raise (self._busy if isinstance(error, BusyError) else self._refusal)(str(error)) from None

    def _refuse_large(self, extra_args: Mapping[str, Any]) -> None:
        """Refuse fields that cannot be within the limits before anything is decoded."""
        most = CHARACTERS_PER_TOKEN * self._settings.limits.max_reference_tokens + ALLOWANCE
        if arguments.characters(extra_args) > most:
            raise RequestError.build(
                "request fields are too large",
                found=f"more than {most} characters",
                expected=f"at most {most}, of which {CHARACTERS_PER_TOKEN} for each token of references",
                remedy="Send less text, or raise the server's limits.max_reference_tokens",
            )
