"""The examples run as they stand, against a real SGLang; see `tests.engines.suites.examples`.

They find the stand-ins for SGLang's kernels themselves.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace

import pytest

from tests.engines.launch import ALWAYS, ROOT
from tests.engines.sglang.launch import SMALL
from tests.engines.suites.examples import ExamplesSuite


@pytest.mark.slow  # a server of its own; what is not of SGLang runs with vLLM, too
class TestExamples(ExamplesSuite):
    engine = "sglang"
    environment = {**os.environ, **ALWAYS}  # noqa: RUF012

    @pytest.fixture
    def server(self, serve):
        return serve("SPECPLUG", anew=True, name="examples")


def test_stand_ins_run_in_little_memory(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    arguments = importlib.import_module("sglang_stand_ins").arguments()
    assert arguments["max_total_tokens"] <= 8192
    assert arguments["mem_fraction_static"] == SMALL["mem_fraction_static"]  # with which the tests start


def test_where_sglangs_own_kernels_run_nothing_stands_in(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    demo, stand_ins = (importlib.import_module(name) for name in ("sglang_demo", "sglang_stand_ins"))
    before = [*sys.path], {**os.environ}
    assert stand_ins.needed()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin="/x/sgl_kernel/__init__.py"))
    assert not stand_ins.needed()
    stand_ins.use()
    assert ([*sys.path], {**os.environ}) == before
    plain, fast = demo.launches({"proposer": "ngram"}, 8)
    assert (plain.environment, [*fast.environment]) == ({}, ["SPECPLUG_CONFIG"])
    assert not {"--device", "cpu", "torch_native"} & {*plain.command, *fast.command}
    assert fast.command[-4:] == ["--speculative-algorithm", "SPECPLUG", "--speculative-num-draft-tokens", "9"]
