"""The operator's HTTP routes that list, add and remove corpora; see `routes`.

Proposers run in other processes, so corpora reach them through the store that `corpora.store` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request

from specplug.errors import SpecplugError
from specplug.operator.bodies import BodyError, read_body
from specplug.operator.corpus_admin import CorpusAdmin, status_of
from specplug.operator.corpus_schema import EXAMPLES, add_schema
from specplug.settings.model import CorporaSettings

PATH = "/corpora"

_WHO = "/specplug/corpora"
_MOST_AT_ONCE = 4
"""Most request bodies held in memory at a time; further ones wait unread."""


class CorpusRoutes:
    """The corpora of one server.

    Args:
        settings: the server's.
        tokenizer: a copy of the server's tokenizer, which nothing else uses; None for a server without one.
    """

    def __init__(self, settings: CorporaSettings, tokenizer: Any) -> None:
        self.admin = CorpusAdmin(settings, tokenizer)
        self.admin.prepare()
        self.most_bytes = settings.max_request_bytes
        self.room = asyncio.Semaphore(_MOST_AT_ONCE)


def attach(add: Callable[..., None]) -> None:
    """Add the routes by `add`, which takes a path, a function, a method and what describes the route."""
    add(
        PATH, list_corpora, "GET", summary="The corpora that proposers draft from, by tenant, and problems of the store"
    )
    what = "Add a corpus, or documents to a corpus; all documents are added or none"
    content = {"application/json": {"schema": add_schema(), "examples": EXAMPLES}}
    add(PATH, add_corpus, "POST", summary=what, openapi_extra={"requestBody": {"required": True, "content": content}})
    parameters = [_query("tenant", "the corpus's tenant"), _query("document", "remove only these documents", True)]
    what = "Remove a corpus, or documents of it"
    add(PATH + "/{name:path}", remove_corpus, "DELETE", summary=what, openapi_extra={"parameters": parameters})


async def list_corpora(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/corpora`."""
    return await _answer(_corpora(request).admin.listed(request.query_params.get("tenant")))


async def add_corpus(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/corpora`."""
    corpora = _corpora(request)
    async with corpora.room:
        body = await _body(request, corpora.most_bytes)
        return await _answer(corpora.admin.add(body, _WHO))


async def remove_corpus(request: Request) -> dict[str, Any]:
    """Answer `DELETE /specplug/corpora/{name}`."""
    query, name = request.query_params, request.path_params["name"]
    removing = _corpora(request).admin.remove(name, query.getlist("document"), query.get("tenant") or "")
    return await _answer(removing)


def _corpora(request: Request) -> CorpusRoutes:
    corpora: CorpusRoutes = request.app.state.specplug.corpora  # the guard has seen that there is a server
    return corpora


async def _body(request: Request, most: int) -> bytearray:
    """Return the request's body.  Refuse one above `most` bytes, as soon as that is known, or one too slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(f"{declared} bytes", most)
    try:
        return await read_body(request.stream(), most)
    except BodyError as error:
        if error.status == 413:
            raise _too_large(f"more than {most} bytes", most) from None
        raise HTTPException(error.status, f"{_WHO}: {error}") from None


def _too_large(found: str, most: int) -> HTTPException:
    return HTTPException(
        413,
        f"{_WHO}: the body is too large; found {found}; expected at most {most}, corpora.max_request_bytes. "
        "Send part of the documents, and the others with 'extend': true",
    )


async def _answer(asking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await asking
    except SpecplugError as error:
        raise HTTPException(status_of(error), str(error)) from error


def _query(name: str, description: str, several: bool = False) -> dict[str, Any]:
    text = {"type": "string"}
    schema = {"type": "array", "items": text} if several else text
    return {"name": name, "in": "query", "description": description, "required": False, "schema": schema}
