"""Checks of SGLang's version and private names, used by the rest of the adapter.

The names are listed in `table`.  Each process probes the names of a part before it uses that part.  If a seam has
moved, the server does not start; if only an optional part uses the seam, that part is switched off with a warning.
"""

from __future__ import annotations

from specplug.seams.support import UNKNOWN, Support
from specplug_sglang.seams.table import OPTIONAL, SEAMS, VERSIONS


def installed_version() -> str:
    """Return this process's SGLang version, "dev" if SGLang does not know its own."""
    from sglang.version import __version__

    return UNKNOWN if str(__version__).startswith("0.0.0") else str(__version__)


_support = Support(VERSIONS, SEAMS, who="specplug_sglang", installed=installed_version, optional=OPTIONAL)

require = _support.require
"""Raise for an SGLang that is too old, or whose seams for a part of the adapter have moved."""

available = _support.available
"""Return whether an optional part of the adapter can be used; log once what is off if it cannot."""

moved = _support.moved
"""Return what has moved among the seams that one part of the adapter uses."""

warn_untested = _support.warn_untested
