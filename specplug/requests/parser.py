"""Parser that turns a request's specplug fields, as the user wrote them, into the wire form sent to the scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from specplug.errors import RequestError
from specplug.requests import arguments, wire
from specplug.requests.fields import CHARACTERS_PER_TOKEN, parse_request_fields
from specplug.settings.sources import ResolvedSettings
from specplug.text.request_tokenizer import RequestTokenizer
from specplug.types.request import Reference, RequestOptions

INLINE_CHARACTERS = 8192
"""Most characters that are parsed on the event loop, a few milliseconds of work; larger requests go to a thread."""

ALLOWANCE = 1 << 18
"""Characters of all other fields: names, numbers and JSON's own."""


class Parser:
    """Parses, checks and tokenises the specplug fields of one server's requests.

    Args:
        found: the server's settings.
        vocab_size: ids lie in [0, vocab_size).
        tokenizer: the tokenizer for reference texts.
        refusal: the exception type raised for wrong fields; the engine's front end answers it with a 400.
    """

    def __init__(
        self,
        found: ResolvedSettings,
        vocab_size: int,
        tokenizer: RequestTokenizer,
        refusal: type[RequestError] = RequestError,
    ) -> None:
        self._refusal = refusal
        self._settings, self._vocab_size, self._tokenizer = found.settings, vocab_size, tokenizer
        self._drafts = not found.settings.drafts_in_engine
        self._proposers = (found.settings.proposer, *found.settings.extra_proposers) if self._drafts else ()
        # The engine's own verifier is used unless the settings name one.
        self._verifiers = (found.settings.verifier,) if found.was_set("verifier") else ()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specplug-requests")

    def prepare_for_serving(self) -> None:
        """Do the one-time work that would otherwise delay the first requests."""
        self._tokenizer.copy()

    def with_prediction(self, extra_args: Mapping[str, Any] | None, prediction: object) -> dict[str, Any]:
        """Return the extra arguments with the request's own `prediction` added, unparsed.

        The engine's own drafter ignores predictions, as it does without specplug.

        Raises:
            RequestError: the prediction is given twice; raised as `refusal`.
        """
        if not self._drafts:
            return dict(extra_args or {})
        try:
            return arguments.with_prediction(extra_args, prediction)
        except RequestError as error:
            raise self._refusal(str(error)) from None

    def parsed(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's extra arguments with specplug's fields in their wire form.

        A `num_speculative_tokens` above the server's is lowered to the server's.

        Raises:
            RequestError: the fields are wrong; raised as `refusal`.
        """
        try:
            self._refuse_large(extra_args)
            given, rest = arguments.split(extra_args)
            options, references, tenant = parse_request_fields(
                given,
                tokenize=self._tokenizer,
                vocab_size=self._vocab_size,
                limits=self._settings.limits,
                proposers=self._proposers,
                verifiers=self._verifiers,
            )
            if not self._drafts:
                _refuse_sources(options, references)
        except RequestError as error:
            raise self._refusal(str(error)) from None
        cap = options.num_speculative_tokens
        if cap is not None:
            options = dataclasses.replace(
                options, num_speculative_tokens=min(cap, self._settings.num_speculative_tokens)
            )
        return {**rest, wire.WIRE_KEY: wire.encode(options, references, tenant)}

    async def parsed_beside(self, extra_args: Mapping[str, Any]) -> dict[str, Any]:
        """Do the same without blocking the event loop: parse large requests in a thread, one at a time."""
        if arguments.characters(extra_args, INLINE_CHARACTERS) <= INLINE_CHARACTERS:
            return self.parsed(extra_args)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.parsed, extra_args)

    def _refuse_large(self, extra_args: Mapping[str, Any]) -> None:
        """Refuse fields that cannot be within the limits before anything is decoded.  Raises RequestError."""
        most = CHARACTERS_PER_TOKEN * self._settings.limits.max_reference_tokens + ALLOWANCE
        if arguments.characters(extra_args, most) > most:
            raise RequestError.build(
                "request fields are too large",
                found=f"more than {most} characters",
                expected=f"at most {most}, of which {CHARACTERS_PER_TOKEN} for each token of references",
                remedy="Send less text, or raise the server's limits.max_reference_tokens",
            )


def _refuse_sources(options: RequestOptions, references: Sequence[Reference]) -> None:
    """Refuse texts to draft from, which the engine's own drafter cannot use.

    Raises:
        RequestError: the request carries or names some.
    """
    given = {"references": references, "documents": options.documents, "corpora": options.corpora}
    found = [name for name, entries in given.items() if entries]
    if found:
        raise RequestError.build(
            "this server drafts with the engine's own drafter, which reads no texts of requests",
            who="request fields",
            found=" and ".join(found),
            remedy="Omit them, or use a server that drafts with one of specplug's proposers",
        )
