"""Settings of a server, fixed at start-up.

`load_settings` resolves them and records the origin of each value.  pydantic is imported here and in plug-ins' own
option models, never by hot-path modules.
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
from specplug.settings.sources import (
    CONFIG_VARIABLE,
    DEFAULT_ORIGIN,
    KINDS,
    ResolvedSettings,
    load_settings,
    plugin_options,
)

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_ORIGIN",
    "KINDS",
    "MAX_SPECULATIVE_TOKENS",
    "CorporaSettings",
    "Faults",
    "Limits",
    "ResolvedSettings",
    "Settings",
    "TraceSettings",
    "leaves",
    "load_settings",
    "plugin_options",
]
