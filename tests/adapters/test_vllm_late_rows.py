"""Outputs of vLLM's V2 runner bring the requests that could not draft, as they are once the step has run."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

from specplug.runtime.steps_in_flight import LateRows
from specplug.seams.hook import hook
from specplug_vllm import step_metadata
from specplug_vllm.worker import hooks


def test_an_output_brings_what_the_host_function_writes_later():
    class Runner:
        speculator = SimpleNamespace(late=LateRows(("a", "b")))

        def sample_tokens(self):
            return SimpleNamespace(model_runner_output=SimpleNamespace())

    hook(Runner, "sample_tokens", hooks.sample_tokens)
    found = Runner().sample_tokens().model_runner_output
    Runner.speculator.late.flags[1] = 1
    assert step_metadata.late(found) == step_metadata.late(pickle.loads(pickle.dumps(found))) == ("b",)
    Runner.speculator.late = None
    assert step_metadata.late(Runner().sample_tokens().model_runner_output) == ()
