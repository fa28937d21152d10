"""The manifests in examples/deploy are valid, name what is there, and fit the supported versions.

`tests/engines/suites/deployed.py` installs and starts them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

import specplug
import specplug_sglang.seams
import specplug_vllm.seams
from specplug.corpus.store import Store
from specplug.settings import load_settings
from tests.manifests import DEPLOY, NAMES, ROOT, Pod, manifest, manifests, pod_spec

SERVERS = ("vllm", "sglang")
VERSIONS = {"vllm/vllm-openai": specplug_vllm.seams.VERSIONS, "lmsysorg/sglang": specplug_sglang.seams.VERSIONS}
BROUGHT = {("secret", "specplug"), ("claim", "texts")}
"""What an operator brings; common.yaml says so."""


@pytest.mark.parametrize("version", ["1.32", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_valid(name: str, version: str):
    for document in manifests(name):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_images_are_of_supported_versions(name: str):
    spec = pod_spec(name)
    images = {container["image"] for container in [*spec["initContainers"], *spec["containers"]]}
    [(image, tag)] = [one.rsplit(":v") for one in images]
    assert VERSIONS[image].judge(tag) == "supported"
    if name != "common":
        assert f"{image}:v{tag}" in (DEPLOY / "Dockerfile").read_text()


def references(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of what a part of a manifest refers to."""
    kinds = {"configMapKeyRef": "map", "configMap": "map", "secretKeyRef": "secret", "persistentVolumeClaim": "claim"}
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key in kinds:
            yield kinds[key], value.get("name", value.get("claimName"))
        elif isinstance(value, dict | list):
            yield from references(value)


def test_what_they_refer_to_is_there():
    names = {document["kind"]: document["metadata"]["name"] for document in manifests("common")}
    own = {("map", names["ConfigMap"]), ("claim", names["PersistentVolumeClaim"])}
    assert {found for name in NAMES for found in references(pod_spec(name))} == own | BROUGHT
    comment = (DEPLOY / "common.yaml").read_text().split("apiVersion")[0]
    assert "kubectl create secret generic specplug --from-literal=operator-key=" in comment
    assert 'a claim "texts"' in comment
    for name in SERVERS:
        service, deployment = (manifest(name, kind) for kind in ("Service", "Deployment"))
        assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("name", SERVERS)
def test_several_replicas_only_read_the_corpora(name: str):
    assert manifest(name, "Deployment")["spec"]["replicas"] > 1
    [container] = pod_spec(name)["containers"]
    [writer] = pod_spec("common")["containers"]
    own, writers = ({mount["name"]: mount for mount in one["volumeMounts"]} for one in (container, writer))
    assert {volume for volume, mount in own.items() if not mount.get("readOnly")} == {"shm"}
    assert own["corpora"]["mountPath"] == writers["corpora"]["mountPath"]
    assert "readOnly" not in writers["corpora"]
    assert pod_spec(name)["securityContext"] == pod_spec("common")["securityContext"]


def test_the_job_installs_as_a_server_does():
    [own] = pod_spec("common")["initContainers"]
    [servers] = pod_spec("vllm")["initContainers"]
    assert own == servers


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("plugins", "settings", "corpora", "texts", "shm")}
    for folder in found.values():
        folder.mkdir()
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_the_settings_are_valid(name: str, folders: dict[str, Path]):
    pod = Pod(name, folders, {})
    pod.publish()
    resolved = load_settings(env={"SPECPLUG_CONFIG": pod.environment(pod.container)["SPECPLUG_CONFIG"]})
    assert resolved.settings.proposer == "retrieval"
    assert resolved.settings.corpora.store == str(folders["corpora"] / "store")
    assert resolved.settings.control.file == str(folders["settings"] / "control.json")


def test_the_job_builds_a_store_that_its_group_reads_and_then_follows_the_texts(folders: dict[str, Path]):
    folders["plugins"].joinpath("bin").symlink_to(Path(sys.executable).parent)
    folders["corpora"].chmod(0o2770)  # by fsGroup
    folders["texts"].joinpath("one.md").write_text("The terms of this licence are simple.")
    job = Pod("common", folders, {"Qwen/Qwen3-8B": "tiny"})
    job.run(job.container)
    private = [path.name for path in folders["corpora"].rglob("*") if not path.stat().st_mode & 0o040]
    assert set(private) <= {"room"}  # which only a writer needs
    folders["texts"].joinpath("two.md").write_text("The cat sat on the mat.")
    job.run(job.container)
    [corpus] = Store(folders["corpora"] / "store").list()
    assert (corpus.name, corpus.documents) == ("texts", 2)


def test_the_address_is_of_this_versions_wheel():
    address = manifest("common", "ConfigMap")["data"]["package"]
    assert address.endswith(f"/specplug-{specplug.__version__}-py3-none-any.whl")
    assert address.startswith("https://wheels.example/")  # a name that nobody can register
    assert ROOT.joinpath("docs", "deploying.md").read_text().count("examples/deploy") > 0
