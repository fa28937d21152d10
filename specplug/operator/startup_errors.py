"""Start-up errors shown as their message alone, without a traceback.

Engines build their configuration deep inside their own code, so the message would follow a traceback of forty lines
that does not help a user who misspelt a setting.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from specplug.errors import SpecplugError

DEBUG_VARIABLE = "SPECPLUG_DEBUG"
"""Environment variable that shows tracebacks, as the command line's ``--debug`` does."""


def show_message_only() -> None:
    """Make this process print only the message, without a traceback, if a specplug error ends it.

    Call it where such an error is raised at start-up.  It has no effect on code that catches the error.
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
