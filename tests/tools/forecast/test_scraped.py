"""Acceptance from /metrics: of specplug's collector, and of texts recorded from vLLM's and SGLang's."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from specplug.errors import EngineError
from specplug.operator.prometheus import register
from specplug.tools.client.figures import parse
from specplug.tools.forecast.scraped import acceptance_of, read_metrics
from tests.test_metrics import STEP, recorded
from tests.tools.client.servers import LocalServer
from tests.tools.forecast.metrics import SGLANG, SGLANG_PLAIN, SGLANG_TREES, VLLM, answering


def found_in(text: str, before: str = ""):
    return acceptance_of(parse(text, "test"), parse(before, "test"), "test")


def specplug_text(*steps) -> str:
    registry = CollectorRegistry()
    register(recorded(*steps), registry)
    return generate_latest(registry).decode()


def test_specplugs_counts_are_divided_by_all_steps_of_requests():
    total = recorded(STEP, STEP).snapshot().total
    found = found_in(specplug_text(STEP, STEP))
    longest = sum(count > 0 for count in total.verified_at)
    assert found.verified == tuple(count / total.target_steps for count in total.verified_at[:longest])
    assert found.survival == tuple(count / total.target_steps for count in total.accepted_at[:longest])
    assert found.tau(longest) == pytest.approx(1 + total.accepted / total.target_steps)
    assert longest > 1
    assert total.target_steps > total.verified_at[0], "there are steps without a draft"


def test_steps_that_no_drafts_were_planned_for_change_nothing():
    """Half of the requests of a benchmark run with the mode off."""
    metrics, registry = recorded(STEP, STEP), CollectorRegistry()
    metrics.record_on_host(500, planned=False)
    register(metrics, registry)
    assert found_in(generate_latest(registry).decode()) == found_in(specplug_text(STEP, STEP))


def test_a_plan_tells_which_share_repeated_requests_brought():
    text = specplug_text(STEP)
    accepted = recorded(STEP).snapshot().total.accepted
    of_memory = f'specplug_accepted_tokens_total{{source="ngram/response memory"}} {accepted}.0\n'
    assert "earlier answers" not in found_in(text).source
    head, tail = text.split("# TYPE specplug_accepted_tokens_total counter\n")
    found = found_in(f"{head}# TYPE specplug_accepted_tokens_total counter\n{of_memory}{tail}")
    assert found.source.endswith("steps of requests, 50% of the accepted tokens from earlier answers")
    assert found.survival == found_in(text).survival


def test_specplugs_counts_come_before_the_engines():
    assert found_in(specplug_text(STEP) + VLLM) == found_in(specplug_text(STEP))
    assert found_in(VLLM + SGLANG) == found_in(VLLM)


def test_vllms_engines_are_added_and_steps_without_drafts_counted():
    found = found_in(VLLM)
    steps = 32 - 12  # tokens less accepted ones: each step emits one more
    assert found.survival == (6 / steps, 4 / steps, 2 / steps)
    assert found.verified == (8 / steps,) * 3  # as long as the longest
    assert found.tau(3) == pytest.approx(32 / steps)
    assert "8 drafts of 2.75 tokens in 20 steps" in found.source


def test_vllms_drafts_are_the_steps_where_tokens_are_not_counted_yet():
    text = "\n".join(line for line in VLLM.splitlines() if "generation_tokens" not in line) + "\n"
    assert found_in(text).survival == (6 / 8, 4 / 8, 2 / 8)


def test_an_interval_counts_what_came_in_it():
    found = found_in(VLLM.replace('position="0"} 3.0', 'position="0"} 5.0').replace("} 4.0", "} 6.0"), VLLM)
    assert found.survival == (1.0, 0.0, 0.0)  # four drafts more, of which each had its first token accepted


def test_sglangs_alpha_gives_its_mean_acceptance_length():
    found = found_in(SGLANG)
    alpha = (math.sqrt(1 + 4 * 1.11) - 1) / 2  # alpha + alpha^2 = 1.11
    assert found.survival == pytest.approx((alpha, alpha**2))
    assert found.tau(2) == pytest.approx(2.11)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SGLANG_TREES, "a plan is for chains; found 9 draft tokens, the root included, in 2 steps"),
        (SGLANG_PLAIN, "no metrics of speculation; expected specplug_target_steps_total, vllm:spec_decode_num_drafts"),
        ("", "SGLang with --enable-metrics"),
        (SGLANG.replace("} 2.11", "} 0.0"), "nothing was drafted; found .*a mean acceptance length of 0"),
        (SGLANG.replace("} 2.11", "} 3.5"), "nothing was drafted"),
        ("<html>", "no metrics in Prometheus's text format"),
    ],
)
def test_metrics_that_say_nothing_are_refused(text, message):
    with pytest.raises(EngineError, match=message):
        found_in(text)


def test_an_interval_without_drafts_is_refused():
    with pytest.raises(EngineError, match=r"nothing was drafted; found .*0 drafts .* in 0 steps.*leave out --interval"):
        found_in(VLLM, VLLM)
    plain = specplug_text()
    with pytest.raises(EngineError, match="nothing was drafted"):
        found_in(plain)


@pytest.mark.parametrize("path", ["", "/", "/metrics"])
def test_a_server_is_scraped(path):
    with answering(VLLM) as url:
        found = read_metrics(url + path)
    assert found.survival == found_in(VLLM).survival
    assert f"{url}/metrics" in found.source


def test_a_server_is_scraped_twice_for_an_interval():
    after = VLLM.replace('position="0"} 3.0', 'position="0"} 5.0').replace("} 4.0", "} 6.0")
    with answering(VLLM, after) as url:
        assert read_metrics(url, 0.1).survival == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("trees", [False, True])
def test_a_server_of_trees_is_refused(trees):
    scheduler = {"control": {"mode": "on"}}
    status = {"engines": [{"trees": trees, "scheduler": scheduler, "workers": []}]}
    with LocalServer({"/metrics": specplug_text(STEP), "/specplug/status": status}).running() as url:
        if not trees:
            assert read_metrics(url) == acceptance_of(parse(specplug_text(STEP), url), {}, f"{url}/metrics")
            return
        with pytest.raises(EngineError, match=r"a plan is for chains; .*found a server of trees.*eagle-topk 1"):
            read_metrics(url)


def test_an_address_without_metrics_is_refused():
    with answering(VLLM) as url, pytest.raises(EngineError, match="HTTP 404"):
        read_metrics(f"{url}/other")
