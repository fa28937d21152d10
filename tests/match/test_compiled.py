"""Kernels are compiled once, for all processes, and run without the GIL."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import CPUDispatcher

from specplug.match import cpu
from specplug.match.cpu import compiled

USE = """
from numba.core import event
from specplug.match.cpu import recency, texts
with event.install_recorder("numba:compile") as compiled:
    own = texts.Texts(1, 64, 4)
    own.extend(0, [1, 2, 1])
assert own.candidates[0] == 1
kernels = [it for module in (recency, texts) for it in vars(module).values() if hasattr(it, "stats")]
print(sum(sum(it.stats.cache_hits.values()) for it in kernels))
print(sum(event.is_start for _, event in compiled.buffer))  # kernels and all else, such as numba's own constructors
"""


def run(script: str, folder: Path) -> list[int]:
    """Run a script with a cache folder; return the numbers that it prints."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    hits, misses = run(USE, tmp_path)
    assert hits == 0
    assert misses > 3
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert kept
    again, compiled_again = run(USE, tmp_path)
    assert again > 0
    assert compiled_again == 0
    assert sorted(tmp_path.rglob("*.nbc")) == kept


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    script = "from specplug.match.cpu.recency import bucket; print(bucket(5, 1, 1))"
    assert run(script, file / "below") == [0]


def test_all_kernels_release_the_gil_and_are_cached() -> None:
    kernels = []
    for module in pkgutil.iter_modules(cpu.__path__, "specplug.match.cpu."):
        found = vars(importlib.import_module(module.name)).values()
        kernels += [it for it in found if isinstance(it, CPUDispatcher)]
    assert len({id(kernel) for kernel in kernels}) > 25
    for kernel in kernels:
        assert kernel.targetoptions["nogil"]
        assert not kernel.targetoptions.get("fastmath")
        if kernel.targetoptions.get("inline") != "always":  # those are cached in their callers
            assert str(compiled.cache_folder()) in kernel._cache.cache_path


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))
    chosen = compiled.cache_folder()
    assert chosen.parent == tmp_path / "chosen"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert compiled.cache_folder() == tmp_path / "home" / "specplug" / chosen.name
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiled.cache_folder().parent == Path.home() / ".cache" / "specplug"


def test_code_of_other_sources_is_never_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = compiled.cache_folder()
    for name in ("compiled.py", "voting.py"):
        (tmp_path / name).write_bytes((Path(compiled.__file__).parent / name).read_bytes())
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    compiled._state.cache_clear()
    copied = compiled.cache_folder()
    (tmp_path / "voting.py").write_text("# changed")
    compiled._state.cache_clear()
    changed = compiled.cache_folder()
    monkeypatch.undo()
    compiled._state.cache_clear()
    assert len({before, copied, changed}) == 3
    assert compiled.cache_folder() == before
