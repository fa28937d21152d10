"""A real `vllm serve`, asked by the `openai` client as users do."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.server import MODEL, Server
from tests.engines.vllm.referee import prompts, tokenizer

SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "raises", "garbage"],
    "policy": "fixed",
    "faults": {"max_consecutive": 2, "cooldown_steps": 4},
    "limits": {"max_reference_tokens": 2000, "max_references": 2},
    "options": {"raises": {"every": 2}},
}
TEXTS = [tokenizer().decode(list(prompt)) for prompt in prompts()]
REFERENCE = "def area(radius):\n    return 3.14159 * radius * radius\n"
STATED: list[dict[str, Any]] = [
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
]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7},
]
PREDICTION = {"type": "content", "content": REFERENCE}
PREDICTIONS: list[tuple[Any, dict[str, Any], str]] = [
    ("a text", {}, "'prediction'"),
    ({"type": "text", "content": "a"}, {}, "'prediction.type'"),
    ({"type": "content"}, {}, "'prediction.content' is missing"),
    ({"type": "content", "content": [{"type": "text", "txet": "a"}]}, {}, "'prediction.content.0.text'"),
    ({"type": "content", "content": "x " * 40000}, {}, "too large"),
    (PREDICTION, {"specplug_prediction": "a"}, "given twice"),
    (PREDICTION, {"specplug": json.dumps({"prediction": PREDICTION})}, "given twice"),
    (PREDICTION, {"specplug_references": ["a", "b"]}, "too many references"),
]
"""OpenAI's own field, what is said to specplug beside it, and what the refusal says."""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    # Room for whole prompts: on a CPU stock V1, too, ends at a seeded request whose prompt comes in pieces.
    return serve("v1", SETTINGS, name="mixed", endpoints=True, max_num_batched_tokens=2048)


@pytest.fixture(scope="module")
def baseline(serve: Callable[..., Server]) -> Server:
    return serve("v1", name="baseline server", installed=False)


def test_the_log_says_once_what_runs(server):
    server.running()
    (line,) = [line for line in server.log().splitlines() if "up to 8 draft tokens" in line]
    assert (
        "ngram + oracle + raises + garbage, policy fixed, up to 8 draft tokens, V1, synchronous; /specplug/status: on, "
        in line
    )


def request(number: int) -> dict[str, Any]:
    """Return one of a hundred requests, no two of them alike in text, sampling and what they say to specplug."""
    return {
        "text": TEXTS[number % len(TEXTS)],
        "stated": STATED[number % len(STATED)],
        "chat": number % 3 == 0,
        "stream": number % 2 == 0,
        "max_tokens": 4 + number % 13,
        "stop": ["\n\n", "return"] if number % 5 == 0 else None,
        **SAMPLED[number % len(SAMPLED)],
    }


async def ask(client: Any, given: dict[str, Any]) -> tuple[str, str, int | None]:
    """Return text, finish reason and the number of tokens that the server counts, of one request."""
    fields = {name: value for name, value in given.items() if name not in ("text", "stated", "chat", "prediction")}
    fields |= {"model": MODEL, "extra_body": {"vllm_xargs": given["stated"]} if given["stated"] else {}}
    if given.get("prediction") is not None:
        (fields if given["chat"] else fields["extra_body"])["prediction"] = given["prediction"]
    if given["stream"]:
        fields["stream_options"] = {"include_usage": True}
    if given["chat"]:
        answer = await client.chat.completions.create(messages=[{"role": "user", "content": given["text"]}], **fields)
    else:
        answer = await client.completions.create(prompt=given["text"], **fields)
    if not given["stream"]:
        choice = answer.choices[0]
        return (choice.message.content if given["chat"] else choice.text), choice.finish_reason, tokens(answer)
    text, reason, count = "", "", None
    async for piece in answer:
        count = tokens(piece) or count
        for choice in piece.choices:
            text += (choice.delta.content if given["chat"] else choice.text) or ""
            reason = choice.finish_reason or reason
    return text, reason, count


def tokens(answer: Any) -> int | None:
    return None if answer.usage is None else answer.usage.completion_tokens


def answers(server: Server, given: list[dict[str, Any]]) -> list[tuple[str, str, int | None]]:
    """Ask everything at once."""

    async def together() -> list[Any]:
        async with server.async_client() as client:
            return await asyncio.gather(*[ask(client, one) for one in given])

    return asyncio.run(together())


def raw(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """POST, and return status and body."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_hundred_mixed_requests_at_once(server, baseline):
    given = [request(number) for number in range(100)]
    found = answers(server, given)
    assert all(reason in ("stop", "length") and count for _, reason, count in found)
    exact = [one for one in given if one["temperature"] == 0 or "seed" in one]
    greedy = [one["temperature"] == 0 for one in given]
    plain = iter(answers(baseline, [{**one, "stated": {}} for one in exact if one["temperature"] == 0]))
    expected = [next(plain) if same else None for same in greedy]
    differing = [
        (one, answer, truth)
        for one, answer, truth in zip(given, found, expected, strict=True)
        if truth is not None and answer != truth
    ]
    assert sum(greedy) == 50
    assert not differing
    assert answers(server, given[:1]) == found[:1], "the server is well afterwards"


def test_faults_of_proposers_were_counted_and_drafts_accepted(server):
    """Of the requests before: some named proposers that raise and that draft garbage."""
    answers(server, [{**request(0), "stated": {"specplug_proposer": name}} for name in ("raises", "garbage", "oracle")])
    status = json.loads(server.get("/specplug/status"))
    [worker] = status["engines"][0]["workers"]
    assert worker["metrics"]["total"]["accepted"] > 0
    assert worker["metrics"]["faults"]["raises"]["raised"] > 0
    assert worker["metrics"]["faults"]["garbage"]["malformed"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"specplug_enable": 1}, "specplug_enabled"),
        ({"specplug": "{"}, "JSON"),
        ({"specplug_num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"specplug_proposer": "oracel"}, "oracle"),
        ({"specplug_references": "x " * 40000}, "too large"),
        ({"specplug_references": [5, 999999]}, "vocabulary"),
        ({"specplug_references": ["a", "b", "c"]}, "too many references"),
    ],
)
def test_bad_fields_are_a_400_that_says_why(server, stated, message, stream):
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        code, text = raw(
            server, path, {"model": MODEL, "stream": stream, "max_tokens": 4, "vllm_xargs": stated, **body}
        )
        assert code == 400, text
        assert message in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_openais_own_prediction_is_a_reference(server, baseline, chat, stream):
    """The oracle drafts from references and from nothing else."""
    plain = {**request(1), "stated": {}, "chat": chat, "stream": stream, "max_tokens": 24, "stop": None}
    [expected] = answers(baseline, [plain])
    oracle = {**plain, "stated": {"specplug_proposer": "oracle"}}
    predictions: list[Any] = [None, PREDICTION, {"type": "content", "content": [{"type": "text", "text": expected[0]}]}]
    drafted = []
    for prediction in predictions:
        before = drafts(server)
        assert answers(server, [{**oracle, "prediction": prediction}]) == [expected]
        drafted.append(drafts(server) - before)
    assert drafted[0] == 0
    assert min(drafted[1:]) > 0


def drafts(server: Server) -> int:
    """Return how many tokens have been drafted."""
    [worker] = json.loads(server.get("/specplug/status"))["engines"][0]["workers"]
    return worker["metrics"]["total"]["proposed"]


def remembered(server: Server, key: str | None) -> int:
    """Ask the same as everybody else, with an API key; return how many tokens of earlier responses were accepted."""

    def accepted() -> int:
        [worker] = json.loads(server.get("/specplug/status"))["engines"][0]["workers"]
        return worker["metrics"]["by_source"]["ngram/response memory"]["accepted"]

    body = {"model": MODEL, "prompt": "def volume(height, width):\n    depth =", "max_tokens": 24, "temperature": 0}
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    before = accepted()
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200
    return accepted() - before


def test_clients_with_keys_of_their_own_share_no_responses(server):
    assert [remembered(server, key) for key in ("one", "two", None)] == [0, 0, 0]
    assert all(remembered(server, key) > 0 for key in ("two", "one", None))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prediction", "stated", "message"), PREDICTIONS)
def test_a_bad_prediction_is_a_400_that_says_why(server, prediction, stated, message, stream):
    given = {"model": MODEL, "stream": stream, "prediction": prediction, "vllm_xargs": stated}
    for path, body in (
        ("/v1/completions", {"prompt": "x", "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 4}),
    ):
        code, text = raw(server, path, {**given, **body})
        assert code == 400, text
        found = json.loads(text)
        assert message in found.get("error", found)["message"]


def test_a_server_without_specplug_does_not_look_at_predictions(baseline):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "prediction": "a text"}
    assert raw(baseline, "/v1/chat/completions", body)[0] == 200


def test_a_client_that_leaves_does_not_disturb_the_others(server):
    async def leave() -> None:
        async with server.async_client() as client:
            stream = await client.completions.create(
                model=MODEL,
                prompt="x = 1\n",
                max_tokens=600,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for _ in stream:
                break
            await stream.close()

    before = answers(server, [request(4)])
    asyncio.run(leave())
    assert answers(server, [request(4)]) == before


def test_too_long_a_prompt_is_a_400(server):
    code, text = raw(server, "/v1/completions", {"model": MODEL, "prompt": [5] * 2000, "max_tokens": 4})
    assert code == 400, text


@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"regex": "(yes|no), [0-9]{3}"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "point",
                    "schema": {
                        "type": "object",
                        "properties": {"x": {"enum": [1, 2]}, "kind": {"enum": ["a", "b"]}},
                        "required": ["x", "kind"],
                        "additionalProperties": False,
                    },
                },
            }
        },
    ],
)
def test_structured_output_equals_stocks(server, baseline, constraint):
    body = {"model": MODEL, "prompt": TEXTS[0], "temperature": 0, "max_tokens": 48, **constraint}
    (code, found), (_, expected) = (raw(one, "/v1/completions", body) for one in (server, baseline))
    assert code == 200, found
    assert json.loads(found)["choices"][0]["text"] == json.loads(expected)["choices"][0]["text"]


def test_logprobs_equal_stocks(server, baseline):
    body = {"model": MODEL, "prompt": TEXTS[1], "temperature": 0, "max_tokens": 12, "logprobs": 2}
    found, expected = (json.loads(raw(one, "/v1/completions", body)[1])["choices"][0] for one in (server, baseline))
    assert found["text"] == expected["text"]
    assert found["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
    assert found["logprobs"]["token_logprobs"] == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-3)


def test_v2_serves_over_http(serve):
    served = serve("v2", {"proposer": "ngram"}, name="v2 server", endpoints=True)
    given = [{**request(number), "temperature": 0, "seed": None} for number in (0, 1, 2, 5)]
    assert all(count for _, _, count in answers(served, given))
    status = json.loads(served.get("/specplug/status"))
    assert status["engines"][0]["runner"] == "v2"
