"""Tests of the manifests in examples/deploy: installed, checked and started as a cluster does, on this machine.

Inherit `DeployedSuite` and name the engine.  Of a manifest's words only the model's path, the port and the address of
specplug's wheel are replaced; what a CPU needs comes after its own arguments.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement

from tests.engines.launch import TINY
from tests.engines.plain import prompts, tokenizer
from tests.engines.server import Answer, Server, ServerProcess
from tests.engines.suites.corpora import SOURCE, answers
from tests.manifests import KEY, ROOT, Pod, build_wheel, manifest, read_only, required

FIXED = 'proposer = "retrieval"\npolicy = "fixed"\nfaults.host_deadline_ms = 10000.0'
"""What is drafted must not depend on a busy machine."""

ENTRY_POINTS = """
import importlib.metadata, json, sys
sys.path.insert(0, sys.argv[1])
groups = ("specplug", "vllm.general_plugins", "vllm.endpoint_plugins", "sglang.srt.plugins")
print(json.dumps({group: sorted(e.name for e in importlib.metadata.entry_points(group=group)) for group in groups}))
"""

ASK = """
import importlib, json, sys
command = importlib.import_module(f"specplug_{sys.argv[1]}.doctor").COMMAND
print(json.dumps(command.launch(sys.argv[2]).settings))
"""

FILES = """
import importlib, sys
print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep="\\n")
"""


class Deployment:
    """A pod's container as `ServerProcess` starts it: its read-only mounts are read-only."""

    def __init__(self, pod: Pod, cpu: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._pod = pod
        self._cpu = cpu
        self._variables = variables
        self._folder = folder

    def words(self, port: int) -> list[str]:
        [stated] = self._pod.container["ports"]
        own = [re.sub(f"^--port={stated['containerPort']}$", f"--port={port}", word) for word in self._pod.line]
        assert f"--port={port}" in own
        return [*own, *self._cpu]

    def command(self, port: int) -> list[str]:
        return read_only(self._pod.read_only_folders, self.words(port), self._folder)

    def variables(self) -> dict[str, str]:
        own = self._pod.environment(self._pod.container)
        path = ":".join(filter(None, [own["PYTHONPATH"], self._variables.get("PYTHONPATH")]))
        return {**own, **self._variables, "PYTHONPATH": path}


class Deployed(Server):
    """A server that is no tenant of the pool, for its calls."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    def running(self) -> ServerProcess:
        return self._process


class DeployedSuite:
    """The engine's tests name these.

    Attributes:
        name: of the manifest, and of the adapter.
        distribution: the engine's, in this environment.
        cpu, variables: further arguments, and the environment, that it needs on a CPU.
        entry_points: of the group by which the engine finds specplug.
        carrier: the field of a request that carries specplug's.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    cpu: ClassVar[Sequence[str]]
    variables: ClassVar[Mapping[str, str]]
    entry_points: ClassVar[tuple[str, list[str]]]
    carrier: ClassVar[str]

    def complete(self, server: Server, number: int) -> str:
        """Return the greedy answer to one of `prompts`, which no later answer is drafted from."""
        body = {"model": str(TINY), "prompt": list(prompts()[number]), "max_tokens": 40, "temperature": 0}
        answer = server.ask("/v1/completions", {**body, self.carrier: {"specplug_store": "false"}})
        assert answer.code == 200, answer.body
        return answer.json["choices"][0]["text"]

    @pytest.fixture(scope="class")
    def folders(self, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        plugins = ROOT / ".cache" / "deployed" / self.name / "plugins"  # always the same path, see `pod`
        shutil.rmtree(plugins, ignore_errors=True)
        names = ("settings", "corpora", "texts", "shm")
        return {"plugins": plugins, **{name: tmp_path_factory.mktemp("volumes") / name for name in names}}

    @pytest.fixture(scope="class")
    def replaced(self, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
        address = manifest("common", "ConfigMap")["data"]["package"]
        assert address.endswith(f"/{wheel.name}")
        return {address: str(wheel), "Qwen/Qwen3-8B": str(TINY), 'proposer = "retrieval"': FIXED}

    @pytest.fixture(scope="class")
    def pod(self, folders: dict[str, Path], replaced: dict[str, str]) -> Pod:
        """The deployment's pod, after its init container."""
        for folder in folders.values():
            folder.mkdir(parents=True)
        pod = Pod(self.name, folders, replaced)
        pod.run(pod.init)
        for file in folders["plugins"].glob("specplug*/**/*.py"):  # kernels compiled from the same file are found again
            os.utime(file, (0, 0))
        pod.publish()
        return pod

    @pytest.fixture(scope="class")
    def deployment(self, pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
        return Deployment(pod, self.cpu, self.variables, tmp_path_factory.mktemp("work"))

    def test_it_installs_what_the_engines_own_requirements_lack(self):
        lacking = required("specplug") - required(self.distribution)
        installed = [Requirement(word).name for word in Pod(self.name, {}, {}).init["args"][1:]]
        assert {"specplug", *installed} == lacking

    def test_entry_points_are_found_in_the_folder_alone(self, folders, pod):
        command = [sys.executable, "-I", "-S", "-c", ENTRY_POINTS, str(folders["plugins"])]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        group, names = self.entry_points
        assert found[group] == names
        assert {"core", "retrieval", self.name} <= set(found["specplug"])

    def test_python_loads_specplug_from_the_folder(self, folders, pod, deployment, tmp_path):
        modules = ["specplug", "specplug_retrieval", f"specplug_{self.name}", "pluggy"]
        files = run(["python3", "-c", FILES, *modules], deployment, tmp_path).split()
        assert {str(Path(file).parents[1]) for file in files} == {str(folders["plugins"])}

    @pytest.mark.slow
    def test_the_engine_accepts_the_manifests_line(self, folders, deployment, tmp_path):
        """By what `specplug doctor --launch` asks the engine."""
        launch = run(["python3", "-c", ASK, self.name, shlex.join(deployment.words(1))], deployment, tmp_path)
        settings = json.loads(launch.splitlines()[-1])
        assert settings["proposer"] == "retrieval"
        assert settings["corpora"]["store"] == str(folders["corpora"] / "store")

    @pytest.mark.slow  # it compiles the kernels of the new folder
    def test_doctor_accepts_the_manifests_line_and_makes_no_store(self, folders, deployment, tmp_path):
        specplug = str(folders["plugins"] / "bin" / "specplug")
        line = shlex.join(deployment.words(1))
        reported = json.loads(run([specplug, "doctor", "--json", "--launch", line], deployment, tmp_path))
        [launch] = [check for check in reported["checks"] if "settings of the launch" in check["summary"]]
        assert (launch["check"], launch["status"]) == (f"{self.name} launch", "ok")
        assert [*folders["corpora"].iterdir()] == []

    @pytest.fixture(scope="class")
    def server(self, deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        """The manifest's server, on a volume without a store."""
        process = ServerProcess(deployment, tmp_path_factory.mktemp("log") / "server.log")  # type: ignore[arg-type]
        yield Deployed(process)
        process.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["startupProbe", "readinessProbe", "livenessProbe"])
    def test_the_probes_are_answered_in_time(self, pod, server, name):
        probe = pod.container[name]
        url = server.url + probe["httpGet"]["path"]
        for _ in range(3):
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as answer:
                assert answer.status == 200

    @pytest.mark.slow
    def test_operators_need_the_secrets_key(self, server):
        assert server.ask("/specplug/status").code == 401
        assert operator(server, "/specplug/status").code == 200

    @pytest.mark.slow
    def test_the_jobs_corpora_are_drafted_from_on_a_read_only_volume(self, folders, replaced, pod, server):
        [missing] = retrieval(server)["problems"]
        assert "no corpus store yet" in missing
        number, ids = answers()[0]
        plain = self.complete(server, number)
        (folders["texts"] / "answer.txt").write_text(tokenizer().decode(list(ids)))
        job = Pod("common", folders, replaced)
        job.run(job.container)
        wait_until(lambda: "texts" in retrieval(server)["tenants"].get("", {}))
        assert self.complete(server, number) == plain
        assert worker(server)["metrics"]["by_source"][SOURCE]["accepted"] > 0
        assert retrieval(server)["problems"] == []
        before = sorted(folders["corpora"].rglob("*"))
        refused = operator(server, "/specplug/corpora", {"name": "more", "documents": ["text"]})
        assert refused.code == 500
        assert "Read-only file system" in refused.error
        assert sorted(folders["corpora"].rglob("*")) == before

    @pytest.mark.slow
    def test_the_config_map_switches_speculation_while_it_serves(self, pod, server):
        def mode() -> str:
            self.complete(server, 0)  # the file is read before a step
            return operator(server, "/specplug/status").json["engines"][0]["scheduler"]["control"]["mode"]

        assert mode() == "on"
        pod.publish(**{"control.json": '{"mode": "off"}'})
        wait_until(lambda: mode() == "off")
        pod.publish()
        wait_until(lambda: mode() == "on")


def run(command: list[str], deployment: Deployment, folder: Path) -> str:
    """Return what a command prints in the container's environment."""
    variables = deployment.variables()
    words = [str(shutil.which(command[0], path=variables["PATH"])), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=folder, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def operator(server: Server, path: str, body: Any = None) -> Answer:
    return server.ask(path, body, {"Authorization": f"Bearer {KEY}"})


def worker(server: Server) -> dict[str, Any]:
    answer = operator(server, "/specplug/status")
    assert answer.code == 200, answer.body
    [found] = answer.json["engines"][0]["workers"]
    return found


def retrieval(server: Server) -> dict[str, Any]:
    return worker(server)["details"]["retrieval"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
