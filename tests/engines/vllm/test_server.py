"""A real `vllm serve`, called by the `openai` client as users do; see `ServerSuite` and `SoakSuite`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.engines.server import MODEL, Server
from tests.engines.suites.explaining import ExplainSuite, explain
from tests.engines.suites.server import REFERENCE, REGEX, SETTINGS, ServerSuite
from tests.engines.suites.soak import SoakSuite
from tests.engines.suites.tenants import TenantsSuite

FAULTS = {"faults": {"max_consecutive": 2, "cooldown_steps": 4}}


@pytest.fixture(scope="module")
def mixed(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Server]:
    """Make the server of this file's suites, with room for whole prompts, as seeded requests need on a CPU."""
    settings = {**SETTINGS, **FAULTS, "trace": {"path": str(tmp_path_factory.mktemp("traced") / "trace.jsonl")}}

    def make(**more: Any) -> Server:
        return serve("v1", settings, anew=True, name="mixed", endpoints=True, max_num_batched_tokens=2048, **more)

    return make


@pytest.fixture(scope="module")
def server(mixed: Callable[..., Server]) -> Server:
    return mixed()


@pytest.fixture(scope="module")
def baseline(serve: Callable[..., Server]) -> Server:
    return serve("v1", name="baseline server", installed=False, in_process=True)


class TestServer(ServerSuite):
    fields = "vllm_xargs"
    started = "V1, synchronous"
    values = (
        {},
        {"specplug_enabled": "false"},
        {"specplug_num_speculative_tokens": 2},
        {"specplug_proposer": "oracle", "specplug_references": REFERENCE},
        {"specplug_references": REFERENCE},
        {"specplug": json.dumps({"references": [{"text": REFERENCE, "name": "area"}], "tenant": "a"})},
        {"specplug_references": [5, 6, 7, 8, 9]},
        {"specplug_prediction": REFERENCE, "specplug_tenant": "b"},
        {"specplug_proposer": "raises"},
        {"specplug_proposer": "garbage"},
    )
    paths = (("/v1/responses", {"input": "x", "max_output_tokens": 4}),)
    regex: ClassVar[dict[str, Any]] = {"structured_outputs": {"regex": REGEX}}

    def test_scores_of_given_tokens_equal_the_baselines(self, server, baseline):
        given = [281, 5, 7]
        greedy = {"prompt": "the cat sat on the mat and the cat", "temperature": 0, "max_tokens": 12}
        for path, body, least in (
            ("/generative_scoring", {"query": "the cat", "items": [" sat", " on the"], "label_token_ids": given}, 2),
            ("/v1/completions", {**greedy, "logprobs": 3, "logprob_token_ids": given}, 36),
        ):
            answers = [one.ask(path, {"model": MODEL, **body}) for one in (server, baseline)]
            assert [answer.code for answer in answers] == [200, 200], answers
            found, expected = (numbers(answer.json) for answer in answers)
            assert len(found) >= least
            assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow  # it compiles for a minute
class TestCompiled(TestServer):
    """With what vLLM compiles for users."""

    @pytest.fixture(scope="class")
    def server(self, mixed: Callable[..., Server]) -> Server:
        return mixed(environment={"TORCHDYNAMO_DISABLE": None})


def numbers(answer: Any) -> list[float]:
    """Return the fractions in an answer."""
    if isinstance(answer, dict | list):
        return [each for part in (answer.values() if isinstance(answer, dict) else answer) for each in numbers(part)]
    return [answer] if isinstance(answer, float) else []


class TestTenants(TenantsSuite):
    fields = "vllm_xargs"


class TestExplain(ExplainSuite):
    fields = "vllm_xargs"

    def test_several_answers_to_one_request_are_told_apart(self, server):
        answer = self.completed(server, {}, n=2, temperature=1.0)
        refused = server.ask(f"/specplug/explain?request={answer['id']}")
        assert refused.code == 400
        names = refused.error.split("the newest ")[1].split("; ")[0].split(", ")
        texts = {explain(server, request=name)["text"] for name in names}
        assert texts == {choice["text"] for choice in answer["choices"]}


@pytest.mark.slow  # routes are the same for V1, and test_tensor_parallel has V2 in processes of its own
def test_v2_serves_over_http(serve):
    served = serve("v2", {"proposer": "ngram"}, anew=True, name="v2 server", endpoints=True)
    suite = TestServer()
    suite.answers(served, [{**suite.request(number), "temperature": 0, "seed": None} for number in (0, 1, 2, 5)])
    status = json.loads(served.get("/specplug/status"))
    assert status["engines"][0]["runner"] == "v2"


class TestSoak(SoakSuite):
    name = "vllm"


@pytest.mark.slow  # V2 takes its time in Triton's interpreter
class TestSoakOfV2(SoakSuite):
    name = "vllm-v2"
    tokens = 12

    @pytest.fixture(scope="class")
    def server(self, serve):
        return serve("v2", SETTINGS, anew=True, name="v2 soak", endpoints=True)
