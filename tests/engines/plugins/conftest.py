"""Imports the test plug-ins from where an engine's processes find them, for the tests in this folder alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

sys.path.append(str(FOLDER))
for module in sorted((FOLDER / "specplug_testkit").glob("*.py")):
    importlib.import_module(f"specplug_testkit.{module.stem}".removesuffix(".__init__"))
sys.path.remove(str(FOLDER))  # what is installed stays what other tests find
