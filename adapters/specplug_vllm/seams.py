"""The one module that the rest of the adapter asks about vLLM's versions and private names.

The names themselves stand in `seams_table`.  Each process probes those that it uses before it uses them, and a server
whose vLLM has moved does not start.
"""

from __future__ import annotations

import functools
import logging

from specplug.errors import EngineError
from specplug.seams.probe import imported, problems
from specplug.seams.seam import Version
from specplug_vllm.seams_table import DIFFERENCES, NEWEST, OLDEST, SEAMS, Where

SUPPORTED = f"vLLM {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
REMEDY = f"Install a supported version: {SUPPORTED}"

_log = logging.getLogger("specplug")


def installed_version() -> str:
    """Return this process's vLLM version, "dev" where it does not know its own."""
    import vllm

    return str(vllm.__version__)


def parse(version: str) -> Version | None:
    """Return (major, minor) of a version such as "0.32.1rc2"; None for one that says neither."""
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


@functools.cache
def require(where: Where) -> None:
    """Refuse to go on with a vLLM whose seams have moved, or that is too old.  Looks once per process and place.

    A vLLM newer than those tested, or one that does not know its version, is served with a warning as long as every
    seam holds.

    Args:
        where: which part of the adapter asks; its seams are imported and compared.

    Raises:
        EngineError: a seam has moved, or the version is too old.
    """
    version = installed_version()
    found = parse(version) or NEWEST
    if found < OLDEST:
        raise _refusal("this vLLM is too old", version)
    gone = moved(where)
    if gone:
        raise _refusal(f"vLLM has moved: {'; '.join(gone)}", version)
    if found > NEWEST or parse(version) is None:
        _warn_untested(version)


def moved(where: Where) -> list[str]:
    """Return what no longer holds of the seams that one part of the adapter uses, in this process's vLLM."""
    version = parse(installed_version()) or NEWEST
    used = (seam for seam in SEAMS if where in seam.where and seam.applies(version))
    return [line for seam in used for line in problems(seam, imported)]


def speculator_gets_req_states() -> bool:
    """Whether vLLM hands its request states to the speculator's factory; before, the runner made them later."""
    return _has("req_states")


@functools.cache
def _has(difference: str) -> bool:
    return not any(problems(DIFFERENCES[difference], imported))


@functools.cache
def _warn_untested(version: str) -> None:
    _log.warning("specplug was tested with %s, not with %s; every seam that it uses is there", SUPPORTED, version)


def _refusal(what: str, version: str) -> EngineError:
    error = EngineError.build(what, who="specplug_vllm", found=f"vLLM {version}", expected=SUPPORTED, remedy=REMEDY)
    assert isinstance(error, EngineError)
    return error
