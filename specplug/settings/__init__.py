"""Settings of a server, fixed at start-up.

`load_settings` resolves them and records the origin of each value.  pydantic is imported here and in plug-ins' own
option models, never by hot-path modules.
"""

from specplug.settings.model import CorporaSettings, Limits, Settings
from specplug.settings.sources import ResolvedSettings, load_settings

__all__ = ["CorporaSettings", "Limits", "ResolvedSettings", "Settings", "load_settings"]
