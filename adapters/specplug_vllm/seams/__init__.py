"""The one module that the rest of the adapter asks about vLLM's versions and private names.

The names themselves stand in `seams_table`.  Each process probes those that it uses before it uses them.  A server
whose vLLM has moved does not start, unless optional parts use what has moved: these are switched off with a warning.
"""

from __future__ import annotations

import functools

from specplug.seams.probe import imported, problems
from specplug.seams.support import Range, Support
from specplug_vllm.seams.table import DIFFERENCES, NEWEST, OLDEST, OPTIONAL, SEAMS

VERSIONS = Range(engine="vLLM", oldest=OLDEST, newest=NEWEST)
SUPPORTED, REMEDY = str(VERSIONS), VERSIONS.remedy

parse = VERSIONS.parse
"""Return (major, minor) of a version such as "0.32.1rc2"; None for one that says neither."""


def installed_version() -> str:
    """Return this process's vLLM version, "dev" where it does not know its own."""
    import vllm

    return str(vllm.__version__)


_support = Support(VERSIONS, SEAMS, who="specplug_vllm", installed=installed_version, optional=OPTIONAL)

require = _support.require
"""Refuse to go on with a vLLM that is too old, or whose seams for a part of the adapter have moved."""

available = _support.available
"""Whether an optional part of the adapter can be used; says once what is off where it cannot."""

moved = _support.moved
"""What no longer holds of the seams that one part of the adapter uses."""

_warn_untested = _support.warn_untested


def speculator_gets_req_states() -> bool:
    """Whether vLLM hands its request states to the speculator's factory; before, the runner made them later."""
    return _has("req_states")


@functools.cache
def _has(difference: str) -> bool:
    return not any(problems(DIFFERENCES[difference], imported))
