"""Checks of vLLM's version and private names, used by the rest of the adapter.

The names are listed in `table`.  Each process probes the names of a part before it uses that part.  If a seam has
moved, the server does not start; if only an optional part uses the seam, that part is switched off with a warning.
"""

from __future__ import annotations

import functools

from specplug.seams.probe import imported, problems
from specplug.seams.support import Range, Support
from specplug_vllm.seams.table import DIFFERENCES, NEWEST, OLDEST, OPTIONAL, SEAMS

VERSIONS = Range(engine="vLLM", oldest=OLDEST, newest=NEWEST, compared=frozenset({NEWEST}))  # it has no CPU build
SUPPORTED, REMEDY = str(VERSIONS), VERSIONS.remedy

parse = VERSIONS.parse
"""Return (major, minor) of a version such as "0.32.1rc2"; None if it has neither."""


def installed_version() -> str:
    """Return this process's vLLM version, "dev" if vLLM does not know its own."""
    import vllm

    return str(vllm.__version__)


_support = Support(VERSIONS, SEAMS, who="specplug_vllm", installed=installed_version, optional=OPTIONAL)

require = _support.require
"""Raise for a vLLM that is too old, or whose seams for a part of the adapter have moved."""

available = _support.available
"""Return whether an optional part of the adapter can be used; log once what is off if it cannot."""

moved = _support.moved
"""Return what has moved among the seams that one part of the adapter uses."""

_warn_untested = _support.warn_untested


def ranks_agree_to_skip_drafts() -> bool:
    """Return whether data-parallel ranks skip the drafts of a step if the schedulers of all of them allow it."""
    return _has("skip_drafts")


@functools.cache
def _has(difference: str) -> bool:
    return not any(problems(DIFFERENCES[difference], imported))
