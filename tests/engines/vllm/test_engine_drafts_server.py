"""A server with vLLM's own draft model and the default policy: status, control, metrics and fields of requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.errors import EngineError, SettingsError
from specplug.settings import Settings
from specplug_vllm.config import drafter_of, engine_tokens, require_settings, use_of
from specplug_vllm.startup.engine_config import _schedule_synchronously as schedule_synchronously
from specplug_vllm.startup.refusals import refuse_unsupported
from tests.engines.launch import TINY
from tests.engines.server import Server
from tests.engines.suites.operations import ACCEPTED, ON, ask, complete, scraped, value

DRAFT_MODEL = {"method": "draft_model", "model": str(TINY), "num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """A server on V1 whose launch names nothing of specplug but a policy."""
    return serve("v1", {"policy": "adaptive+batch"}, speculative_config=DRAFT_MODEL, name="own", in_process=True)


def counts(server: Server) -> dict[str, Any]:
    (engine,) = ask(server, "/specplug/status").json["engines"]
    return engine["scheduler"]["metrics"]["by_source"]["draft_model"]


def test_status_and_metrics_name_the_drafter_and_count_its_drafts(server):
    """vLLM counts drafts that are accepted past the end of an answer, too."""
    complete(server)
    (engine,) = ask(server, "/specplug/status").json["engines"]
    scheduler = engine["scheduler"]
    assert (scheduler["engine_drafter"], engine["workers"], engine["max_draft_length"]) == ("draft_model", [], 4)
    assert engine["settings"]["proposer"] == {"value": "engine", "origin": "--speculative-config"}
    assert engine["settings"]["policy"]["value"] == Settings(proposer="engine").policy == "adaptive+batch"
    assert scheduler["policy"].keys() == {"adaptive", "batch"}
    drafted = counts(server)
    assert drafted["accepted"] == drafted["verified"] > 0
    mine = value(scraped(server), ACCEPTED, engine="0", source="draft_model")
    theirs = re.search(r"vllm:spec_decode_num_accepted_tokens_total\{.*\} (\S+)", ask(server, "/metrics").body)
    assert theirs is not None
    assert 0 < mine == drafted["accepted"] <= float(theirs[1])
    line = r"engine, policy adaptive\+batch, up to 4 draft tokens, vLLM's draft_model, V1"
    assert re.search(rf"specplug [\d.]+\S*: {line}", server.log())


def test_the_operator_and_requests_limit_drafts_without_loss(server):
    plain = complete(server)["choices"][0]["text"]
    limited = {"specplug_num_speculative_tokens": 2}
    for order, fields, most in (
        ({"mode": "off"}, {}, 0),
        ({**ON, "num_speculative_tokens": 2}, {}, 2),
        (ON, {"specplug_enabled": False}, 0),
        (ON, limited, 2),
    ):
        assert ask(server, "/specplug/mode", order).code == 200
        before = counts(server)["verified_at"]
        assert complete(server, vllm_xargs=fields)["choices"][0]["text"] == plain
        spent = [now - then for now, then in zip(counts(server)["verified_at"], before, strict=True)]
        assert (sum(spent[:most]) > 0, sum(spent[most:])) == (most > 0, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"specplug_references": "some text"}, "reads no texts of requests"),
        ({"specplug_proposer": "ngram"}, "this server has not loaded the proposer"),
    ],
)
def test_fields_for_specplugs_proposers_are_refused(server, fields, message):
    answer = ask(server, "/v1/completions", {"model": "tiny", "prompt": "x", "vllm_xargs": fields})
    assert answer.code in (400, 404)
    assert message in answer.body


def config(method: str = "eagle", section: Any = None, *, ranks: int = 1, **spec: Any) -> Any:
    """Return what `specplug_vllm.config` reads of a `VllmConfig`."""
    spec = {"method": method, "model": "somewhere", "num_speculative_tokens": 4, **spec}
    parallel = SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=ranks, data_parallel_size=1)
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{"enable_adaptive_verification": False, **spec}),
        additional_config={} if section is None else {"specplug": section},
        parallel_config=parallel,
        model_config=SimpleNamespace(is_moe=False),
        scheduler_config=SimpleNamespace(async_scheduling=True),
        use_v2_model_runner=True,
    )


OF_PROPOSERS = ("extra_proposers", "verifier", "trace", "draft_ranks")


def hybrid(method: str = "eagle", lookup: str = "ngram", model_tokens: int = 3, **given: Any) -> Any:
    """Return the same of a server whose lookup continues the drafts of vLLM's own drafter."""
    settings = {name: given.pop(name) for name in OF_PROPOSERS if name in given}
    options = {"hybrid": {"lookup": lookup, "model_tokens": model_tokens}}
    return config(method, {"proposer": "hybrid", "options": options, **settings}, **given)


def test_without_a_section_of_settings_vllms_drafter_is_left_alone():
    assert use_of(config()) == ""
    assert require_settings(config(section={})).settings.drafts_in_engine


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(section={"proposer": "ngram"}), r"proposer 'ngram', and method 'eagle' in --speculative-config"),
        (config("dspark", {}, enable_adaptive_verification=True), "both choose how much to verify"),
        (config("extract_hidden_states", {}), "the method does not draft"),
        (hybrid(model_tokens=4), "nothing is left to draft.*found 4 of 4 draft tokens"),
        (hybrid(lookup="crosstok"), "does not continue.*found crosstok.*expected .*ngram"),
        (
            config(section={"proposer": "hybrid", "options": {"hybrid": {"model": "crosstok"}}}),
            "vLLM's own drafter is the model.*found options.hybrid.model 'crosstok'",
        ),
        (config(section={"proposer": "hybrid", "options": 5}), "options"),
        (config(section={"proposer": "hybrid", "options": {"hybrid": 5}}), "options.hybrid"),
        (hybrid("ngram"), "lookup cannot continue.*method 'ngram'.*one of draft_model, eagle"),
        (hybrid("suffix"), "lookup cannot continue.*method 'suffix'"),
        (hybrid(ranks=2, draft_sample_method="probabilistic"), "'probabilistic' on 2 ranks"),
        (hybrid(enable_adaptive_verification=True), "lookup cannot continue.*enable_adaptive_verification"),
        (hybrid(extra_proposers=["retrieval"]), "'extra_proposers' has no effect"),
        (hybrid(verifier="threshold"), "'verifier' has no effect"),
        (hybrid(trace={"path": "drafts.trace"}), "'trace.path' has no effect"),
        (hybrid(draft_ranks="each"), "'draft_ranks' has no effect"),
    ],
)
def test_what_vllms_drafter_would_not_follow_is_refused(given, message):
    def checked() -> None:
        require_settings(given)
        refuse_unsupported(given)

    with pytest.raises((EngineError, SettingsError), match=message):
        checked()


def test_lookup_after_vllms_drafter_has_that_ones_name_and_settings():
    found = require_settings(hybrid(lookup="retrieval", model_tokens=2))
    assert (found.settings.proposer, engine_tokens(hybrid(model_tokens=2))) == ("retrieval", 2)
    assert (use_of(hybrid()), drafter_of(hybrid())) == ("hybrid", "eagle")
    assert (use_of(config(section={})), engine_tokens(config(section={}))) == ("engine", 0)
    refuse_unsupported(hybrid(ranks=2, draft_sample_method="greedy"))


def test_lookup_after_vllms_drafter_needs_synchronous_scheduling_on_v1():
    given = hybrid()
    with pytest.raises(EngineError, match=r"V1 does not schedule asynchronously.*--async-scheduling"):
        schedule_synchronously(given)
    given.scheduler_config.async_scheduling = None
    schedule_synchronously(given)
    assert given.scheduler_config.async_scheduling is False
