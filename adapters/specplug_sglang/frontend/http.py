"""Hooks on SGLang's HTTP front end, in each process that may serve HTTP: the operator's routes, metrics and streams.

SGLang serves /metrics only with ``--enable-metrics``.  Its own routes for external corpora serve its n-gram, and name
specplug's routes instead.  Servers without specplug are unchanged.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from specplug_sglang import seams, status
from specplug_sglang.config import resolved, use_of
from specplug_sglang.frontend import guards

MESSAGE = (
    "these routes serve SGLang's own n-gram; specplug lists, adds and removes corpora at /specplug/corpora, "
    "in the store that corpora.store names"
)

_SERVER = "sglang.srt.entrypoints.http_server"


def prepare_front(result: Any, manager: Any) -> None:
    """Add the routes to the app of a new `TokenizerManager` that will be served over HTTP, and parse streams by token.

    SGLang imports its HTTP server before it creates the manager; an offline `Engine` does not import it.
    """
    if _SERVER in sys.modules and use_of(manager.server_args):
        attach(sys.modules[_SERVER].app, manager)
        parse_by_token(manager.tokenizer)


def attach(app: Any, manager: Any) -> None:
    """Add the routes of `specplug.operator.routes` to the app of a `TokenizerManager`, for operators only.

    SGLang's ``--admin-api-key`` is an operator's key.  SGLang checks its own keys first, as on ``/set_internal_state``.
    """
    from sglang.srt.utils.auth import AuthLevel, auth_level

    from specplug.operator import routes
    from specplug.operator.access import Operators
    from specplug.operator.corpus_admin import CorpusAdmin
    from specplug.operator.explainer import Explainer
    from specplug.text.request_tokenizer import RequestTokenizer

    settings = resolved(manager.server_args).settings
    tokenizer = None
    reads_texts = settings.corpora.store is not None or settings.trace.path is not None
    if reads_texts and manager.tokenizer is not None:
        tokenizer = RequestTokenizer(lambda: manager.tokenizer).copy()
    is_new = not hasattr(app.state, "specplug")
    operators = Operators([manager.server_args.admin_api_key])
    app.state.specplug = routes.OperatedServer(
        versions=status.versions,
        ask=functools.partial(status.ask, manager),
        order=functools.partial(status.order, manager),
        corpora=CorpusAdmin(settings.corpora, tokenizer),
        explainer=Explainer(settings, tokenizer),
    )
    app.state.specplug_access = operators
    if is_new:
        guards.install(app, operators)
        routes.attach(app, auth_level(AuthLevel.ADMIN_OPTIONAL))


def export_metrics(result: Any, app: Any) -> None:
    """Export the metrics of an app's engines once its /metrics exists; called in the app's event loop.

    The exporter is imported late: prometheus_client decides at import whether counts are shared between processes, and
    SGLang enables that after it loads plug-ins.
    """
    server = getattr(app.state, "specplug", None)
    if server is None or not seams.available("metrics"):
        return
    from specplug.operator.exporter import exporter

    collector = exporter()
    collector.watch(server.ask)
    route = next(route for route in reversed(app.routes) if getattr(route, "path", None) == "/metrics")
    serve = route.app

    @functools.wraps(serve)
    async def refreshing_first(scope: Any, receive: Any, send: Any) -> None:
        await collector.refresh()  # in the event loop that the engines answer in
        await serve(scope, receive, send)

    route.app = refreshing_first


async def refuse_corpora(answer: str, original: Callable[..., Any], manager: Any, *args: Any) -> Any:
    """Answer SGLang's routes for the corpora of its n-gram, where specplug drafts, with `MESSAGE`."""
    if use_of(manager.server_args) not in ("proposers", "hybrid"):
        return await original(manager, *args)
    from sglang.srt.managers import io_struct

    return getattr(io_struct, answer)(success=False, message=MESSAGE)


# -- streams of reasoning and tool calls -----------------------------------------------------------------------------


def parse_by_token(tokenizer: Any) -> None:
    """Let this process's parsers of streams take the tokens of a step one by one, as without speculation.

    Several of SGLang's parsers of reasoning and tool calls return at most one part of a call for a piece of a stream,
    its name or arguments.  If a piece has more, arguments, calls or content are lost; the list is in
    ``tests/engines/streamed_parsers.md``.  A later call replaces the tokenizer.

    Args:
        tokenizer: the server's; its special tokens are never split, because parsers look for them at once.  None or a
            slow one: words are fed one by one.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    _wrap(FunctionCallParser, "parse_stream_chunk", tokenizer, _calls_joined)
    _wrap(JsonArrayParser, "parse_streaming_increment", tokenizer, _results_joined)
    _wrap(ReasoningParser, "parse_stream_chunk", tokenizer, _reasoning_joined)


def _wrap(owner: Any, name: str, tokenizer: Any, join: Callable[[list[Any]], Any]) -> None:
    """Make a parser's method parse the tokens of its text one by one, and join what it returns for them."""
    current = getattr(owner, name)
    original = getattr(current, "_specplug_original", current)

    @functools.wraps(original)
    def parse(self: Any, text: str, *args: Any) -> Any:
        found = [original(self, piece, *args) for piece in pieces(text, tokenizer)]
        return found[0] if len(found) == 1 else join(found)

    parse._specplug_original = original  # type: ignore[attr-defined]
    setattr(owner, name, parse)


def _calls_joined(found: list[Any]) -> tuple[str, list[Any]]:
    return "".join(text or "" for text, _ in found), [call for _, calls in found for call in calls]


def _results_joined(found: list[Any]) -> Any:
    text = "".join(one.normal_text or "" for one in found)
    calls = [call for one in found for call in one.calls]
    return type(found[0])(normal_text=text, calls=calls)


def _reasoning_joined(found: list[Any]) -> tuple[str, str]:
    return "".join(reasoning or "" for reasoning, _ in found), "".join(text or "" for _, text in found)


def pieces(text: str, tokenizer: Any) -> Iterator[str]:
    """Yield the tokens of a text as text; all of it at once if it has one token or none.

    Characters that a token shares with its neighbours stay together, so the pieces always join to the text.
    """
    ends = sorted({end for _, end in _offsets(text, tokenizer)[:-1] if end} | {len(text)})
    start = 0
    for end in ends:
        yield text[start:end]
        start = end


def _offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Return where each token begins and ends; those of words if the tokenizer does not report them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [found.span() for found in _WORDS.finditer(text)]
    offsets: list[tuple[int, int]] = backend.encode(text, add_special_tokens=False).offsets
    return offsets


_WORDS = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]|\w+|\W")
