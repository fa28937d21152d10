"""The operator's HTTP routes, as an endpoint plug-in of vLLM in the API server process.

A server with specplug enabled has them unless ``VLLM_PLUGINS`` is set without ``specplug_http``.  By default vLLM loads
only endpoint plug-ins that ``VLLM_PLUGINS`` names, as it cannot know whether their routes are guarded.  These are, by
`specplug.operator.access`.  vLLM's own ``--api-key`` guards only the paths of its API; a server that has such a key,
but no operator's key, requires it here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points, version
from typing import Any

from fastapi import FastAPI

from specplug.operator import routes
from specplug.operator.access import Operators
from specplug.operator.corpus_admin import CorpusAdmin
from specplug.operator.explainer import Explainer
from specplug.requests.clients import Clients
from specplug.seams.seam import hook
from specplug.text.request_tokenizer import RequestTokenizer
from specplug_vllm import seams
from specplug_vllm.config import require_settings, use_of
from specplug_vllm.worker import status

_GROUP = "vllm.endpoint_plugins"


def install() -> None:
    """Make vLLM load these routes by default, in a process whose configuration enables specplug."""
    from vllm import plugins

    if not hasattr(plugins, "load_endpoint_plugins"):
        seams.available("routes")  # logs what is off
    else:
        hook(plugins, "load_endpoint_plugins", _with_ours)


def _with_ours(original: Callable[..., list[Any]], supported_tasks: Any = None) -> list[Any]:
    import vllm.envs as envs

    if envs.VLLM_PLUGINS is not None:
        return [*original(supported_tasks), _ClientsKept()]
    others = {point.name for point in entry_points(group=_GROUP)} - {SpecplugEndpoints.name}
    loaded = original(supported_tasks) if others else []  # vLLM warns of each plug-in that it skips
    fits = set(SpecplugEndpoints.required_tasks) & set(supported_tasks or ())
    return [*loaded, *([SpecplugEndpoints()] if fits else ()), _ClientsKept()]


class _ClientsKept:
    """Endpoint plug-in of vLLM that adds the middleware to distinguish requests' clients, and no routes."""

    name = "specplug_clients"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the middleware."""
        app.add_middleware(Clients)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Do nothing."""


class SpecplugEndpoints:
    """Adds the routes of `specplug.operator.routes`."""

    name = "specplug_http"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        if seams.available("routes"):
            routes.attach(app)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Store what the routes need."""
        if not seams.available("routes"):
            return
        import vllm.envs as envs

        is_ours = engine_client is not None and use_of(engine_client.vllm_config)
        state.specplug = _server(engine_client) if is_ours else None
        keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
        state.specplug_access = Operators(api_keys=keys)


def _server(engine_client: Any) -> routes.OperatedServer:
    import vllm

    cores = engine_client.engine_core
    model = engine_client.vllm_config.model_config
    settings = require_settings(engine_client.vllm_config).settings
    tokenizer = None
    reads_texts = settings.corpora.store is not None or settings.trace.path is not None
    if reads_texts and not model.skip_tokenizer_init:
        from vllm.tokenizers import cached_tokenizer_from_config

        # A copy, because one thread at a time may use vLLM's own.
        tokenizer = RequestTokenizer(functools.partial(cached_tokenizer_from_config, model)).copy()
    return routes.OperatedServer(
        versions=lambda: {"specplug": version("specplug"), "vllm": str(vllm.__version__)},
        ask=functools.partial(status.ask_engines, cores, "specplug_status"),
        order=functools.partial(status.ask_engines, cores, "specplug_control"),
        corpora=CorpusAdmin(settings.corpora, tokenizer),
        explainer=Explainer(settings, tokenizer),
    )
