"""The harness itself: what the tests of SGLang rely on."""

from __future__ import annotations

import os

import pytest

from tests.engines.engines import HostDied, Raised
from tests.engines.plain import assert_greedy, ids
from tests.engines.sglang import inside

PROMPT = "def main():\n"


def test_functions_run_in_both_processes(baseline):
    assert baseline.call(process) != baseline.inside(process)
    assert baseline.inside(process) == baseline.inside(process)


@pytest.mark.parametrize("where", ["call", "inside"])
def test_exceptions_arrive_with_type_and_text(where, baseline):
    with pytest.raises(Raised, match="told to") as caught:
        getattr(baseline, where)(fail, text="told to")
    assert (caught.value.type, caught.value.text) == ("ZeroDivisionError", "told to")
    assert "in fail" in str(caught.value)


def test_sglangs_own_calls_to_the_scheduler_still_work(baseline):
    with pytest.raises(Raised, match="no_such_method"):
        baseline.call(rpc, method="no_such_method")


@pytest.mark.parametrize("where", ["call", "inside"])
def test_an_engine_that_ends_is_noticed_and_started_anew(where, engine):
    separate = engine(max_running_requests=2, name="separate")
    with pytest.raises(HostDied, match="has ended"):
        getattr(separate, where)(end)
    assert separate.call(process) > 0


def test_an_engine_that_hangs_is_noticed(engine):
    separate = engine(max_running_requests=2, name="separate")
    with pytest.raises(HostDied, match="in time"):
        separate.call(hang, timeout=1.0)


def test_an_engine_that_cannot_start_says_why(engine):
    wrong = engine("NGRAM", topk=4, page_size=16, name="wrong")
    for _ in range(2):  # the second time it is not tried
        with pytest.raises(Raised, match="page_size"):
            wrong.call(process)


@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
def test_a_small_cache_retracts(algorithm, overlap, engine, baseline):
    """Answers of requests that start anew in the middle are the same."""
    overcommitted = {"schedule_conservativeness": 0.1, "max_total_tokens": 320, "context_length": 256}
    small = engine(algorithm, topk=4, overlap=overlap, **overcommitted, name="small")
    crowd = [PROMPT] * 4 + ["import os\nimport sys\n"] * 2
    params = {"max_new_tokens": 120}  # without "ignore_eos", with which SGLang lets in no more than it has room for
    answers, alone = (each.call(inside.generate, prompts=crowd, params=params) for each in (small, baseline))
    assert sum(answer["meta"]["num_retractions"] for answer in answers) > 0
    assert_greedy([ids(prompt) for prompt in crowd], alone, answers)


def test_an_engine_starts_on_a_machine_with_3_gb_left(baseline):
    """Memory is measured before and after a model is loaded; other engines start, so 800 MB are left at last."""
    needed = baseline.inside(cached_tokens)
    assert 0 < needed <= 16384  # which the tiny model fits into a few MB
    assert baseline.inside(cached_tokens, before=3.0, after=0.8) == needed


def test_without_the_stand_ins_sglang_does_not_run(engine):
    """The other tests therefore run on the stand-ins, and none is skipped."""
    bare = engine(environment={"PYTHONPATH": ""}, name="bare")
    with pytest.raises((Raised, HostDied)):
        bare.call(process)


def test_a_server_answers_as_an_engine_does(serve, baseline):
    """The server speculates, so the plug-in works in processes that are started as users start them."""
    server = serve("NGRAM", anew=True, topk=4, enable_metrics=True, name="server")
    given = {"model": server.model, "prompt": ids(PROMPT), "temperature": 0.0, "max_tokens": 40}
    for _ in range(2):  # the second time it has learnt the answer
        completion = server.client().completions.create(**given)
        assert completion.choices[0].text == baseline.call(text, prompt=PROMPT, max_new_tokens=40)
        assert completion.choices[0].finish_reason == "length"
    [calls] = [
        line for line in server.get("/metrics").splitlines() if line.startswith("sglang:spec_verify_calls_total")
    ]
    assert 0 < float(calls.split()[-1]) < 78


def cached_tokens(scheduler, before=None, after=None):
    """Return how many tokens SGLang has room for; or would have, with so many GiB free before and after loading."""
    runner = scheduler.tp_worker.model_runner
    if before is None:
        return runner.max_total_num_tokens
    from sglang.srt.mem_cache import kv_cache_configurator as module

    default = module.get_available_gpu_memory
    module.get_available_gpu_memory = lambda *args, **kwargs: after
    try:
        configurator = runner.kv_cache_configurator
        return configurator.config_from_budget(configurator._profile_available_bytes(before)).max_total_num_tokens
    finally:
        module.get_available_gpu_memory = default


def fail(anything, text):
    raise ZeroDivisionError(text)


def end(anything):
    os._exit(3)


def hang(anything):
    import time

    time.sleep(60)


def process(anything):
    return os.getpid()


def rpc(engine, method):
    engine.collective_rpc(method)


def text(engine, prompt, **params):
    return engine.generate(prompt=prompt, sampling_params={"temperature": 0.0, **params})["text"]
