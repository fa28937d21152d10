"""The toy's folder, and a registry with planted mistakes in place of the installed plug-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.audit import toy


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the toy's prompts, in the folder of its model."""
    return toy.save(tmp_path_factory.mktemp("toy"))


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("specplug.tools.cli.launch", "specplug_transformers.engine"):
        monkeypatch.setattr(f"{module}.default_registry", toy.registry)
    monkeypatch.setenv("SPECPLUG_CONFIG", '{"faults": {"host_deadline_ms": null}}')
