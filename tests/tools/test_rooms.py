"""The room of the tools: no module of an engine's process loads it, and old places of its modules name the new ones."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import specplug
import specplug.tools


def rooms(package) -> list[str]:
    return [found.name for found in pkgutil.iter_modules(package.__path__)]


def test_no_other_room_loads_the_tools():
    others = [room for room in rooms(specplug) if room != "tools"]
    code = f"""
import importlib, pkgutil, sys, specplug
for room in {others}:
    found = importlib.import_module("specplug." + room)
    for it in pkgutil.iter_modules(getattr(found, "__path__", ())):
        try:
            importlib.import_module(f"specplug.{{room}}.{{it.name}}")
        except ModuleNotFoundError as error:
            assert error.name in ("fastapi", "triton"), error  # only servers have them
sys.exit(", ".join(name for name in sys.modules if name.startswith("specplug.tools")) or None)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.strip() == ""
    assert run.returncode == 0


@pytest.mark.parametrize("room", rooms(specplug.tools))
def test_an_old_place_names_the_new_one(room):
    for name in (f"specplug.{room}", f"specplug.{room}.anything"):
        with pytest.raises(ModuleNotFoundError, match=rf"specplug\.{room} is now specplug\.tools\.{room}"):
            importlib.import_module(name)
    assert importlib.import_module(f"specplug.tools.{room}").__doc__


@pytest.mark.parametrize(
    ("old", "new"),
    [("trim", "specplug.steps.trim"), ("pipeline", "in specplug.steps"), ("types.verdict", "specplug.types.step")],
)
def test_an_old_module_names_the_new_one(old, new):
    with pytest.raises(ModuleNotFoundError, match=rf"specplug\.{old} is now {new}"):
        importlib.import_module(f"specplug.{old}")
