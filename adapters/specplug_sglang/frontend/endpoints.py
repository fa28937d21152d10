"""The operator's HTTP routes on SGLang's own server, present whenever specplug is enabled.

They serve operators only, see `specplug.operator.access`; SGLang's ``--admin-api-key`` is an operator's key.  SGLang
checks its own keys first, as it does on ``/set_internal_state``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from specplug.operator import router
from specplug.operator.access import Operators
from specplug.operator.corpora_routes import CorpusRoutes
from specplug_sglang import status
from specplug_sglang.config import resolved
from specplug_sglang.frontend import guards
from specplug_sglang.frontend.intake import PARSER


def attach(app: Any, manager: Any) -> None:
    """Add the routes of `specplug.operator.router` to the app of a `TokenizerManager`."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    is_new = not hasattr(app.state, "specplug")
    operators = Operators([manager.server_args.admin_api_key])
    app.state.specplug = router.OperatedServer(
        versions=status.versions,
        ask=partial(status.ask, manager),
        order=partial(status.order, manager),
        corpora=_corpora(manager),
        operators=operators,
    )
    if is_new:
        guards.install(app, operators)
        app.include_router(router.build(auth_level(AuthLevel.ADMIN_OPTIONAL)))


def _corpora(manager: Any) -> CorpusRoutes:
    settings, has_tokenizer = resolved(manager.server_args).settings.corpora, manager.tokenizer is not None
    needed = settings.store is not None and has_tokenizer
    return CorpusRoutes(settings, getattr(manager, PARSER).tokenizer.copy() if needed else None)
