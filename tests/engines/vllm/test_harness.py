"""The harness itself: what the tests of engines rely on."""

from __future__ import annotations

import os

import pytest

from tests.engines.engines import HostDied, Raised
from tests.engines.vllm import inside

STEPS = [{"prompt": "def main():\n", "at": at, "id": f"request {at}", "params": {"max_tokens": 24}} for at in (0, 2, 5)]


@pytest.mark.slow  # the servers of other tests have several processes, too
def test_engines_of_several_processes_answer_alike(baseline_v1, engine):
    apart = engine("v1", installed=False, in_process=False, name="apart")
    given = {"prompts": ["def main():\n", [5, 9, 12]], "params": {"max_tokens": 12, "logprobs": 2}}
    assert apart.call(inside.generate, **given) == baseline_v1.call(inside.generate, **given)
    apart.stop()


def test_engines_ask_for_a_quarter_of_a_gib(baseline_v1):
    """They do not request a share of the machine's memory, which vLLM reads when no bytes are given."""
    assert baseline_v1.call(cache_bytes) == 256 << 20


def test_requests_arrive_and_leave_when_reported(baseline_v1):
    alone = baseline_v1.call(inside.drive, requests=STEPS[:1])
    driven = baseline_v1.call(inside.drive, requests=STEPS, aborts={"request 2": 9})
    assert set(driven["outputs"]) == {"request 0", "request 5"}
    assert driven["outputs"]["request 0"] == alone["outputs"]["request 0"]
    assert driven["steps"] > alone["steps"]


def test_a_small_cache_preempts(engine):
    small = engine("v1", installed=False, block_size=32, num_gpu_blocks_override=12, max_model_len=256, name="small")
    crowd = [{"prompt": "def main():\n", "params": {"max_tokens": 120, "ignore_eos": True}} for _ in range(6)]
    assert small.call(inside.drive, requests=crowd)["preemptions"] > 0


def test_exceptions_arrive_with_type_and_text(baseline_v1):
    with pytest.raises(Raised, match="told to") as caught:
        baseline_v1.call(fail, text="told to")
    assert (caught.value.type, caught.value.text) == ("ZeroDivisionError", "told to")


def test_an_engine_that_ends_is_noticed_and_started_anew(engine):
    mortal = engine("v1", installed=False, max_num_seqs=2, name="mortal")
    with pytest.raises(HostDied, match="has ended"):
        mortal.call(end)
    assert mortal.call(process) > 0


def test_an_engine_that_hangs_is_noticed(engine):
    mortal = engine("v1", installed=False, max_num_seqs=2, name="mortal")
    with pytest.raises(HostDied, match="in time"):
        mortal.call(hang, timeout=1.0)


def test_an_engine_that_cannot_start_says_why(engine):
    wrong = engine("v1", installed=False, max_model_len=10**9, name="wrong")
    for _ in range(2):  # the second time it is not tried
        with pytest.raises(Raised, match="max_model_len"):
            wrong.call(process)


def test_hosts_have_their_own_environment(engine):
    own = engine("v1", installed=False, max_num_seqs=2, name="mortal")
    variables = own.call(variable, name="VLLM_PLUGINS"), own.call(variable, name="PYTHONPATH")
    stated = own.configuration.variables()
    assert variables == (stated["VLLM_PLUGINS"], stated["PYTHONPATH"])


def fail(llm, text):
    raise ZeroDivisionError(text)


def end(llm):
    os._exit(3)


def hang(llm):
    import time

    time.sleep(60)


def process(llm):
    return os.getpid()


def variable(llm, name):
    return os.environ[name]


def cache_bytes(llm):
    return llm.llm_engine.vllm_config.cache_config.kv_cache_memory_bytes
