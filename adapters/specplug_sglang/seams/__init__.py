"""The one module that the rest of the adapter asks about SGLang's versions and private names.

The names themselves stand in `seams_table`.  Each process probes those that it uses before it uses them.  A server
whose SGLang has moved does not start, unless optional parts use what has moved: these are switched off with a warning.
"""

from __future__ import annotations

from specplug.seams.support import UNKNOWN, Support
from specplug_sglang.seams.table import OPTIONAL, SEAMS, VERSIONS


def installed_version() -> str:
    """Return this process's SGLang version, "dev" where it does not know its own."""
    from sglang.version import __version__

    return UNKNOWN if str(__version__).startswith("0.0.0") else str(__version__)


_support = Support(VERSIONS, SEAMS, who="specplug_sglang", installed=installed_version, optional=OPTIONAL)

require = _support.require
"""Refuse to go on with an SGLang that is too old, or whose seams for a part of the adapter have moved."""

available = _support.available
"""Whether an optional part of the adapter can be used; says once what is off where it cannot."""

moved = _support.moved
"""What no longer holds of the seams that one part of the adapter uses."""

warn_untested = _support.warn_untested
