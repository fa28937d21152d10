"""The manifests of examples/deploy, read and run as Kubernetes does, with folders of this machine as volumes."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
NAMES = ("common", "vllm", "sglang")
KEY = "sesame"

Manifest = dict[str, Any]


def manifests(name: str) -> list[Manifest]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text(encoding="utf-8")))


def manifest(name: str, kind: str) -> Manifest:
    """Return the only document of a kind in a file."""
    [found] = [document for document in manifests(name) if document["kind"] == kind]
    return found


def pod_spec(name: str) -> Manifest:
    """Return the pod of a file's deployment or job."""
    if name == "common":
        return manifest(name, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return manifest(name, "Deployment")["spec"]["template"]["spec"]


class Pod:
    """A file's pod, with a folder for each of its volumes.

    Args:
        folders: the folder of each volume by name.
        replaced: words of the manifest by what stands for them on this machine.
    """

    def __init__(self, name: str, folders: Mapping[str, Path], replaced: Mapping[str, str]) -> None:
        self.spec = pod_spec(name)
        self._folders = folders
        self._replaced = replaced
        [self.init] = self.spec["initContainers"]
        [self.container] = self.spec["containers"]
        self._data = manifest("common", "ConfigMap")["data"]

    @property
    def line(self) -> list[str]:
        """The command line of its container."""
        return self.command(self.container)

    @property
    def read_only_folders(self) -> list[Path]:
        """The folders of the volumes that its container must not write to."""
        mounts = self.container["volumeMounts"]
        return [self._folders[mount["name"]] for mount in mounts if mount.get("readOnly", False)]

    def publish(self, **changed: str) -> None:
        """Write the ConfigMap's volume as the kubelet does: all files change at once, by one renamed link."""
        root = self._folders["settings"]
        written = Path(tempfile.mkdtemp(prefix="..", dir=root))
        for file, text in (self._data | changed).items():
            (written / file).write_text(self._here(text, self.container))
            if not (root / file).is_symlink():
                (root / file).symlink_to(Path("..data") / file)
        link = root / "..data_tmp"
        link.symlink_to(written.name)
        before = (root / "..data").resolve() if (root / "..data").exists() else None
        os.replace(link, root / "..data")
        if before is not None:
            shutil.rmtree(before)

    def command(self, container: Manifest) -> list[str]:
        """Return a container's command line; its paths and `replaced` words are this machine's."""
        own = self._stated(container)
        words = [*container["command"], *container.get("args", ())]
        return [self._here(re.sub(r"\$\((\w+)\)", lambda found: own[found[1]], word), container) for word in words]

    def environment(self, container: Manifest) -> dict[str, str]:
        """Return this process's environment without its Python path and specplug's variables, and the container's."""
        outer = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith(("SPECPLUG_", "PYTEST"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        stated = {name: self._here(value, container) for name, value in self._stated(container).items()}
        return {**outer, "PATH": path, **stated}

    def run(self, container: Manifest) -> str:
        """Run a container to its end, in an empty folder; return what it printed."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                self.command(container),
                env=self.environment(container),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=600,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _stated(self, container: Manifest) -> dict[str, str]:
        found = {}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "configMapKeyRef" in source:
                found[variable["name"]] = self._data[source["configMapKeyRef"]["key"]]
            else:
                found[variable["name"]] = KEY if "secretKeyRef" in source else variable["value"]
        return found

    def _here(self, text: str, container: Manifest) -> str:
        mounts = {mount["mountPath"]: str(self._folders[mount["name"]]) for mount in container["volumeMounts"]}
        here = {**mounts, **self._replaced}
        return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], text)


def build_wheel(folder: Path) -> Path:
    """Build this checkout's wheel with the tools of this environment."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(list(map(str, command)), check=True, timeout=600, env={**os.environ, "PYTHONPATH": ""})
    [wheel] = folder.glob("*.whl")
    return wheel


def required(name: str, *extras: str) -> set[str]:
    """Return what an installed distribution asks for, itself or by what it asks for, as far as that is installed."""
    found: dict[str, set[str]] = {}
    waiting = [(canonicalize_name(name), {"", *extras})]
    while waiting:
        name, chosen = waiting.pop()
        new = chosen - found.get(name, set())
        try:
            requirements = map(Requirement, importlib.metadata.requires(name) or ()) if new else ()
        except importlib.metadata.PackageNotFoundError:
            requirements = ()
        found[name] = found.get(name, set()) | chosen
        for requirement in requirements:
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in chosen):
                waiting.append((canonicalize_name(requirement.name), {"", *requirement.extras}))
    return set(found)


MOUNT = """
cd "$0"
until [ "$1" = -- ]; do mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; done
shift
exec "$@"
"""


def read_only(folders: list[Path], command: list[str], cwd: Path) -> list[str]:
    """Return a command that runs another one, for which the folders are mounted read-only, in the folder `cwd`."""
    return ["unshare", "-rm", "sh", "-ec", MOUNT, str(cwd), *map(str, folders), "--", *command]
