"""Parsing of one request's fields, with size checks and tokenisation, in the engine's front end.

Only token ids leave the front end.  A mistake raises `RequestError`, which the front end answers with a 4xx.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from specplug.errors import RequestError, SpecplugError, suggest
from specplug.requests.schema import Ids, RequestFields, as_list, in_vocabulary
from specplug.settings.mistakes import from_pydantic, no_duplicates, shown, together
from specplug.settings.model import Limits
from specplug.text.normalized import normalized
from specplug.types.request import Reference, RequestOptions, StoredDocument

CHARACTERS_PER_TOKEN = 16
"""Texts with more characters than this times the tokens still allowed are refused without being tokenised.  Prose and
code have 3 to 5 characters per token in today's vocabularies."""


def parse_request_fields(
    raw: Mapping[str, Any] | str | None,
    *,
    tokenize: Callable[[str], Sequence[int] | Ids],
    vocab_size: int,
    limits: Limits,
    proposers: Collection[str] | None = None,
    verifiers: Collection[str] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Check one request's fields and convert them to the form that plug-ins read.

    Args:
        raw: the fields, as a mapping or as the text of a JSON object; None for a request that has none.
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
    fields = _fields(as_mapping(raw), limits)
    if proposers is not None and fields.proposer is not None and fields.proposer not in proposers:
        raise RequestError.build(
            "this server has not loaded the proposer",
            who="request field 'proposer'",
            found=shown(fields.proposer),
            remedy=f"{suggest(fields.proposer, proposers)}. The server's extra_proposers names more",
        )
    if verifiers is not None and fields.verifier is not None and fields.verifier not in verifiers:
        raise RequestError.build(
            "this server does not verify with it",
            who="request field 'verifier'",
            found=shown(fields.verifier),
            expected=" or ".join(map(repr, verifiers)) or "none, as the engine's own verifier serves",
        )
    options = RequestOptions(
        acceptance_threshold=_threshold(fields, thresholds),
        enabled=fields.enabled,
        num_speculative_tokens=fields.num_speculative_tokens,
        proposer=fields.proposer,
        verifier=fields.verifier,
        store=fields.store,
        group=fields.group,
        corpora=tuple(dict.fromkeys(fields.corpora)),
        documents=tuple(dict.fromkeys(StoredDocument(each.name, each.corpus) for each in fields.documents)),
    )
    return options, _tokenized(_sources(fields), tokenize, vocab_size, limits.max_reference_tokens), fields.tenant


def _threshold(fields: RequestFields, named: Mapping[str, float] | None) -> float | None:
    given = fields.acceptance_threshold
    if given is None:
        return None
    found = shown(given)
    expected = None
    remedy = None
    if named is None:
        what = "this server's verifier takes no threshold"
        remedy = "Omit it, or use a server whose settings name a verifier that does; `specplug list` shows them"
    elif fields.verifier is None:
        what = "a threshold applies only to requests that name the server's lossy verifier"
        found += " without 'verifier'"
        remedy = "Name the verifier too, or omit the threshold"
    elif isinstance(given, str):
        if given in named:
            return named[given]
        what = "the server has no such threshold"
        expected = ", ".join(map(repr, named)) or "a number; the server's acceptance_thresholds names none"
    elif 0 < given <= 1:
        return given
    else:
        what = "threshold out of range"
        expected = "more than 0, at most 1"
    who = "request field 'acceptance_threshold'"
    raise RequestError.build(what, who=who, found=found, expected=expected, remedy=remedy)


def as_mapping(raw: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """Return request fields as a mapping, parsed if they come as JSON.

    Raises:
        RequestError: they are not a JSON object, or the object gives a key twice.
    """
    if isinstance(raw, str):
        raw = from_json(raw, "a JSON object")
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise RequestError.build("malformed request fields", found=shown(raw), expected="a JSON object")
    return raw


def from_json(text: str, expected: str) -> Any:
    """Return the decoded JSON text.

    Raises:
        RequestError: the text is not JSON, or gives a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise RequestError.build("malformed request fields", found=str(error), expected=expected) from None


def _fields(raw: Mapping[str, Any], limits: Limits) -> RequestFields:
    """Validate the fields, checking the numbers of references and names before their contents."""
    predictions = raw.get("prediction") is not None
    _count("references", len(as_list(raw.get("references"))) + predictions, limits.max_references)
    _count("documents", len(as_list(raw.get("documents"))), limits.max_documents)
    _count("corpora", len(as_list(raw.get("corpora"))), limits.max_corpora)
    try:
        return RequestFields.model_validate(dict(raw))
    except ValidationError as error:
        mistakes = from_pydantic(error, RequestFields, "request field")
        raise RequestError(together([mistake.line() for mistake in mistakes], "request field")) from None


def _count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise RequestError.build(
            f"too many {field} in request field {field!r}",
            found=f"{count}, the prediction included" if field == "references" else str(count),
            expected=f"at most {limit}",
            remedy=f"Send fewer, or raise the server's limits.max_{field}",
        )


_Source = tuple[str, str, str | Ids]
"""A text that drafts may copy from: the request's field, the name, and the text or its ids."""


def _sources(fields: RequestFields) -> list[_Source]:
    """Return the texts in search order, without empty ones."""
    sources: list[_Source] = []
    if fields.prediction is not None:
        text = "".join(part.text for part in fields.prediction.content)
        sources.append(("prediction", "prediction", text))
    for index, reference in enumerate(fields.references):
        content = reference.token_ids if reference.text is None else reference.text
        assert content is not None  # ReferenceField holds one of them
        sources.append((f"references.{index}", reference.name or f"reference {index + 1}", content))
    return [source for source in sources if len(source[2])]


def _tokenized(
    sources: Sequence[_Source], tokenize: Callable[[str], Sequence[int] | Ids], vocab_size: int, limit: int
) -> tuple[Reference, ...]:
    """Check sizes, starting with those that need no tokenizer, and convert every source to ids."""
    given = sum(len(content) for _, _, content in sources if not isinstance(content, str))
    characters = sum(len(content) for _, _, content in sources if isinstance(content, str))
    if given > limit:
        raise _too_large(f"{given} tokens", limit)
    if characters > CHARACTERS_PER_TOKEN * (limit - given):
        raise _too_large(f"{characters} characters and {given} tokens", limit)
    references = []
    total = 0
    for field, name, content in sources:
        ids = tokenize(normalized(content)) if isinstance(content, str) else content
        total += len(ids)
        if total > limit:
            raise _too_large(f"{total} tokens up to {field!r}", limit)
        references.append(Reference(in_vocabulary(field, ids, vocab_size), name))
    return tuple(references)


def _too_large(found: str, limit: int) -> SpecplugError:
    return RequestError.build(
        "references of the request are too large",
        found=found,
        expected=f"at most {limit} tokens in all",
        remedy="Send less text, or raise the server's limits.max_reference_tokens",
    )
