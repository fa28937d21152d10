"""Launch configuration shared by all engines of the tests: paths, arguments, environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

ENGINES = Path(__file__).parent
ROOT = ENGINES.parents[1]
TINY = ROOT / "specplug" / "tools" / "demo" / "models" / "tiny"
PLUGINS = ENGINES / "plugins"
TORCHVISION = ENGINES / "torchvision_cpu"

SOURCES = [str(ROOT / folder) for folder in (".", "proposers", "policies", "adapters")]
"""What engines import of specplug: this checkout, whichever one the environment has installed."""

PYTHON = sys.executable

ALWAYS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # threads that load in a forked process can find "Invalid thread pool!"
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # A late draft is a dropped draft: what is drafted must not depend on a busy machine, nor what a policy has learnt.
    "SPECPLUG_CONFIG": '{"policy":"fixed","faults":{"host_deadline_ms":null},"costs":{"measure":false}}',
}

MODEL = "tiny"  # its name on servers


@dataclass(frozen=True)
class Configuration:
    """One way to launch an engine; each engine has a subclass.

    Attributes:
        arguments: of the engine's class; JSON values.
        environment: variables added to the test process's own; None takes a variable away.
    """

    arguments: Mapping[str, Any]
    environment: Mapping[str, str | None] = field(default_factory=dict)

    always: ClassVar[Mapping[str, str]] = ALWAYS
    """Variables of every process of the engine."""

    host: ClassVar[str] = ""
    """The module that runs as the host of this engine; see `tests.engines.host`."""

    late: ClassVar[tuple[str, ...]] = (
        *("SPECPLUG_CONFIG", "SPECPLUG_TEST_COLD", "SPECPLUG_TEST_NAME", "PYTEST_CURRENT_TEST"),
        *("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"),  # of costs; the kernels that a nursery has loaded are loaded
    )
    """Variables that are read when an engine starts, not when it is imported: one nursery does for all their values."""

    own_folders: ClassVar[tuple[Path, ...]] = ()
    """Folders of `PYTHONPATH` that a host adds when it starts, so that one nursery does with and without them."""

    @property
    def key(self) -> str:
        """The same for configurations that start the same engine."""
        return json.dumps([self.arguments, self.environment], sort_keys=True)

    @property
    def has_children(self) -> bool:
        """Return whether the host starts processes of its own, which take a moment to end."""
        return False

    def variables(self) -> dict[str, str]:
        """Return the whole environment of the engine's process."""
        merged = {**os.environ, **self.always, **self.environment}
        merged["PYTHONPATH"] = os.pathsep.join([*filter(None, [merged.get("PYTHONPATH")]), *SOURCES])
        return {name: value for name, value in merged.items() if value is not None}

    def early(self) -> dict[str, str]:
        """Return the variables that are read when the engine is imported."""
        found = {name: value for name, value in self.variables().items() if name not in self.late}
        own = {*map(str, self.own_folders)}
        folders = [folder for folder in found["PYTHONPATH"].split(os.pathsep) if folder not in own]
        return {**found, "PYTHONPATH": os.pathsep.join(folders)}

    def command(self, port: int) -> list[str]:
        """Return the command that starts the engine's server on a port of this machine."""
        raise NotImplementedError
