"""examples/deploy/sglang.yaml on this machine; see `DeployedSuite`."""

from __future__ import annotations

import os
from typing import ClassVar

from tests.engines.launch import TORCHVISION
from tests.engines.sglang.launch import SGLANG_CPU, Configuration, configuration
from tests.engines.suites.deployed import DeployedSuite


class TestDeployed(DeployedSuite):
    name = "sglang"
    distribution = "sglang"
    cpu = configuration().flags()[2:]  # without the model
    variables: ClassVar = {
        **{name: value for name, value in Configuration.always.items() if name != "SPECPLUG_CONFIG"},
        "PYTHONPATH": os.pathsep.join(map(str, [SGLANG_CPU, TORCHVISION])),
    }
    entry_points = ("sglang.srt.plugins", ["specplug"])
    carrier = "custom_params"
