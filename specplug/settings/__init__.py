"""Settings: what a server is told at start-up, and what one request may say.

`load_settings` resolves a server's settings and knows where each value came from; `parse_request_fields` checks the
fields of one request.  pydantic is imported here and in plug-ins' own option models, never by hot-path modules.
"""

from specplug.settings.model import (
    MAX_SPECULATIVE_TOKENS,
    CorporaSettings,
    Faults,
    Limits,
    Settings,
    TraceSettings,
    leaves,
)
from specplug.settings.plugins import KINDS, plugin_options
from specplug.settings.request import parse_request_fields
from specplug.settings.request_fields import RequestFields
from specplug.settings.sources import CONFIG_VARIABLE, DEFAULT_ORIGIN, ResolvedSettings, load_settings

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_ORIGIN",
    "KINDS",
    "MAX_SPECULATIVE_TOKENS",
    "CorporaSettings",
    "Faults",
    "Limits",
    "RequestFields",
    "ResolvedSettings",
    "Settings",
    "TraceSettings",
    "leaves",
    "load_settings",
    "parse_request_fields",
    "plugin_options",
]
