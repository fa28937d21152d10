"""A mistake of the operator's ends a server's start with its message alone.

Engines build their configuration deep inside their own code, so the message would stand below a traceback of forty
lines that says nothing to whoever misspelt a setting.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from specplug.errors import SpecplugError

DEBUG_VARIABLE = "SPECPLUG_DEBUG"
"""Shows tracebacks; the command line's ``--debug``, too."""


def show_message_only() -> None:
    """Let this process, if an error of specplug's ends it, print the message without the traceback.

    Call it where such an error is raised at start-up.  It changes nothing for whoever catches the error.
    """
    if os.environ.get(DEBUG_VARIABLE) or hasattr(sys.excepthook, "_specplug"):
        return
    original = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        own = next((each for each in (error, error.__cause__) if isinstance(each, SpecplugError)), None)
        if own is None:
            original(kind, error, traceback)
        else:
            print(f"error: {own}", file=sys.stderr)

    show._specplug = True  # type: ignore[attr-defined]
    sys.excepthook = show
