"""The operator's HTTP routes on SGLang's own server, present whenever specplug is enabled.

They serve operators only, see `specplug.operator.access`; SGLang's ``--admin-api-key`` is an operator's key.  SGLang
checks its own keys first, as it does on ``/set_internal_state``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from specplug.operator import routes
from specplug.operator.access import Operators
from specplug.operator.corpus_admin import CorpusAdmin
from specplug.text.request_tokenizer import RequestTokenizer
from specplug_sglang import status
from specplug_sglang.config import resolved
from specplug_sglang.frontend import guards


def attach(app: Any, manager: Any) -> None:
    """Add the routes of `specplug.operator.routes` to the app of a `TokenizerManager`."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    is_new = not hasattr(app.state, "specplug")
    operators = Operators([manager.server_args.admin_api_key])
    app.state.specplug = routes.OperatedServer(
        versions=status.versions,
        ask=partial(status.ask, manager),
        order=partial(status.order, manager),
        corpora=_corpora(manager),
    )
    app.state.specplug_access = routes.Access(operators)
    if is_new:
        guards.install(app, operators)
        routes.attach(app, auth_level(AuthLevel.ADMIN_OPTIONAL))


def _corpora(manager: Any) -> CorpusAdmin:
    settings, tokenizer = resolved(manager.server_args).settings.corpora, None
    if settings.store is not None and manager.tokenizer is not None:
        tokenizer = RequestTokenizer(lambda: manager.tokenizer).copy()
    return CorpusAdmin(settings, tokenizer)
