"""TRL, which launches vLLM without arguments of specplug's: `SPECPLUG_ENABLE` turns it on.

Weights do not reach vLLM here: TRL's server takes them by NCCL, which needs GPUs, and vLLM's CPU build cannot load them
again.  What they do is tested by test_engine_events.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Pool
from tests.engines.launch import PYTHON, ROOT, TINY
from tests.engines.plain import Answers, prompts
from tests.engines.server import Server
from tests.engines.vllm import launch

pytestmark = pytest.mark.slow

ENABLED = {"SPECPLUG_ENABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_AOT_COMPILE": "0"}


class Configuration(launch.Configuration):
    """One way to launch TRL's server."""

    def command(self, port: int) -> list[str]:
        trl = str(Path(PYTHON).with_name("trl"))
        model, *flags = self.flags()
        return [trl, "vllm-serve", "--model", model, *flags, "--host", "127.0.0.1", "--port", str(port)]


@pytest.fixture(scope="module")
def server(pool: Pool) -> Iterator[Server]:
    stated = launch.configuration(in_process=False, environment=ENABLED)
    return pool.tenant(Server, "trl", Configuration(stated.arguments, stated.environment))


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    from trl.generation.vllm_client import VLLMClient

    return VLLMClient(server.url, connection_timeout=10)


def counts(server: Server) -> dict[str, Any]:
    [engine] = server.ask("/specplug/status").json["engines"]
    return engine["workers"][0]["metrics"]["total"]


def test_trls_server(server: Server, client: Any, truth: Answers) -> None:
    given = [list(prompt) for prompt in prompts()[:6]]
    found = client.generate(given, temperature=0.0, max_tokens=40)["completion_ids"]
    assert found == [answer["token_ids"] for answer in truth[:6]]
    assert counts(server)["tau"] > 1.5


def test_samples_and_a_flush_of_trls_server(server: Server, client: Any) -> None:
    before = counts(server)
    client.reset_prefix_cache()
    found = client.generate([list(prompt) for prompt in prompts()[:2]], n=4, temperature=1.0, max_tokens=16)
    lengths = [len(each) for each in found["completion_ids"]]
    assert [len(each) for each in found["logprobs"]] == lengths
    grown = {name: number - before[name] for name, number in counts(server).items() if name in ("emitted", "proposed")}
    assert grown["emitted"] == sum(lengths)
    assert grown["proposed"] > 0


def test_a_colocated_trainer(truth: Answers) -> None:
    stated = launch.configuration(environment=ENABLED)
    given = json.dumps([list(prompt) for prompt in prompts()[:6]])
    command = [PYTHON, "-m", "tests.engines.vllm.colocated", str(TINY), given, "40"]
    ran = subprocess.run(command, cwd=ROOT, env=stated.variables(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["completions"] == [answer["token_ids"] for answer in truth[:6]]
    assert found["total"]["tau"] > 1.5
