"""A real SGLang server, asked by the `openai` client as users do, and by its own ``/generate``."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import prompts, tokenizer
from tests.engines.server import MODEL, Server

SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "raises", "garbage"],
    "policy": "fixed",
    "faults": {"host_deadline_ms": None, "max_consecutive": 2, "cooldown_steps": 4},
    "limits": {"max_reference_tokens": 2000, "max_references": 2},
    "options": {"raises": {"every": 2}},
}
TEXTS = [tokenizer().decode(list(prompt)) for prompt in prompts()]
REFERENCE = "def area(radius):\n    return 3.14159 * radius * radius\n"
STATED: list[dict[str, Any]] = [
    {},
    {"specplug_enabled": False},
    {"specplug_num_speculative_tokens": 2},
    {"specplug_proposer": "oracle", "specplug_references": REFERENCE},
    {"specplug_references": REFERENCE, "other": [1, "a"]},
    {"specplug": {"references": [{"text": REFERENCE, "name": "area"}], "tenant": "a"}},
    {"specplug": json.dumps({"references": {"token_ids": [5, 6, 7, 8, 9]}})},
    {"specplug_prediction": {"type": "content", "content": REFERENCE}, "specplug_tenant": "b"},
    {"specplug_proposer": "raises"},
    {"specplug_proposer": "garbage"},
]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7},
]
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"specplug_enable": 1}, "specplug_enabled"),
    ({"specplug": "{"}, "JSON"),
    ({"specplug": {"references": [{"text": "a", "txet": "b"}]}}, "txet"),
    ({"specplug_num_speculative_tokens": -1}, "num_speculative_tokens"),
    ({"specplug_proposer": "oracel"}, "oracle"),
    ({"specplug_references": "x " * 40000}, "too large"),
    ({"specplug_references": [5, 999999]}, "vocabulary"),
    ({"specplug_references": ["a", "b", "c"]}, "too many references"),
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

Answer = list[tuple[str, str | None]]
"""Text and finish reason of each choice."""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    environment = {"SPECPLUG_CONFIG": json.dumps(SETTINGS)}
    return serve("SPECPLUG", environment=environment, name="mixed")


@pytest.fixture(scope="module")
def baseline(serve: Callable[..., Server]) -> Server:
    return serve(name="baseline server")


def test_the_log_says_once_what_runs(server):
    server.running()
    (line,) = [line for line in server.log().splitlines() if "up to 8 draft tokens" in line]
    assert (
        "ngram + oracle + raises + garbage, policy fixed, up to 8 draft tokens, chains, overlap; /specplug/status: on, "
        in line
    )


def request(number: int) -> dict[str, Any]:
    """Return one of a hundred requests, no two of them alike in text, sampling, endpoint and what they say to
    specplug."""
    return {
        "text": TEXTS[number % len(TEXTS)],
        "stated": STATED[number % len(STATED)],
        "kind": ("chat", "completion", "generate")[number % 3],
        "stream": number % 2 == 0,
        "max_tokens": 4 + number % 13,
        "n": 2 if number % 7 == 0 else 1,
        "stop": ["\n\n", "return"] if number % 5 == 0 else None,
        **SAMPLED[number % len(SAMPLED)],
    }


async def ask(client: Any, given: dict[str, Any]) -> Answer:
    """Ask one request."""
    if given["kind"] == "generate":
        return await ask_generate(client, given)
    fields = {name: value for name, value in given.items() if name not in ("text", "stated", "kind", "prediction")}
    fields |= {"model": MODEL, "extra_body": {"custom_params": given["stated"]} if given["stated"] else {}}
    chat = given["kind"] == "chat"
    if given.get("prediction") is not None:
        (fields if chat else fields["extra_body"])["prediction"] = given["prediction"]
    if chat:
        answer = await client.chat.completions.create(messages=[{"role": "user", "content": given["text"]}], **fields)
    else:
        answer = await client.completions.create(prompt=given["text"], **fields)
    if not given["stream"]:
        return [((each.message.content if chat else each.text), each.finish_reason) for each in answer.choices]
    texts, reasons = [""] * given["n"], [""] * given["n"]
    async for piece in answer:
        for choice in piece.choices:
            texts[choice.index] += (choice.delta.content if chat else choice.text) or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    return list(zip(texts, reasons, strict=True))


async def ask_generate(client: Any, given: dict[str, Any]) -> Answer:
    """Ask SGLang's own endpoint, by the HTTP client inside the `openai` client."""
    url = str(client.base_url).removesuffix("v1/") + "generate"
    found: dict[int, tuple[str, str | None]] = {}
    async with client._client.stream("POST", url, json=body_of(given), timeout=300) as response:
        assert response.status_code == 200, await response.aread()
        if not given["stream"]:
            whole = json.loads(await response.aread())
            pieces = enumerate(whole if isinstance(whole, list) else [whole])
            return [(piece["text"], piece["meta_info"]["finish_reason"]["type"]) for _, piece in pieces]
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                piece = json.loads(line.removeprefix("data: "))
                assert "error" not in piece, piece
                reason = piece["meta_info"]["finish_reason"]
                found[piece.get("index", 0)] = (piece["text"], reason and reason["type"])
    return [found[index] for index in sorted(found)]


def body_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return what ``/generate`` takes."""
    names = {
        "max_tokens": "max_new_tokens",
        "seed": "sampling_seed",
        "temperature": "temperature",
        "n": "n",
        "stop": "stop",
    }
    params = {own: given[name] for name, own in names.items() if given.get(name) is not None}
    if given["stated"]:
        params["custom_params"] = given["stated"]
    return {"text": given["text"], "stream": given["stream"], "sampling_params": params}


def answers(server: Server, given: list[dict[str, Any]], beside: Callable[[], None] | None = None) -> list[Answer]:
    """Ask everything at once, and run a function of the test meanwhile."""

    async def together() -> list[Any]:
        async with server.async_client() as client:
            requested = [ask(client, one) for one in given]
            if beside is not None:
                requested.append(asyncio.to_thread(beside))
            return await asyncio.gather(*requested)

    found = asyncio.run(together())
    return found if beside is None else found[:-1]


def raw(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """POST, and return status and body."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def assert_refused(server: Server, stated: dict[str, Any], message: str, stream: bool) -> None:
    """Every endpoint answers with a 400 that says why."""
    openai = {"model": MODEL, "stream": stream, "max_tokens": 4, "custom_params": stated}
    for path, body in (
        ("/v1/completions", {"prompt": "x", **openai}),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2, **openai}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **openai}),
        ("/generate", {"text": "x", "stream": stream, "sampling_params": {"custom_params": stated}}),
        ("/generate", {"text": ["x", "y"], "stream": stream, "sampling_params": [{}, {"custom_params": stated}]}),
    ):
        code, text = raw(server, path, body)
        assert code == 400, text
        found = json.loads(text)
        assert message in found.get("error", found)["message"]


def test_a_hundred_mixed_requests_at_once(server, baseline):
    """Mistakes among them, which spoil nothing."""
    given = [request(number) for number in range(100)]

    def mistakes() -> None:
        for stream in (False, True):
            for stated, message in MISTAKES:
                assert_refused(server, stated, message, stream)

    found = answers(server, given, mistakes)
    assert all(reason in ("stop", "length") for answer in found for _, reason in answer)
    greedy = [number for number, one in enumerate(given) if one["temperature"] == 0]
    plain = answers(baseline, [{**given[number], "stated": {}} for number in greedy])
    differing = [
        (given[number], found[number], truth)
        for number, truth in zip(greedy, plain, strict=True)
        if found[number] != truth
    ]
    assert len(greedy) == 50
    assert not differing
    assert answers(server, given[:1]) == found[:1], "the server is well afterwards"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stated", "message"), MISTAKES)
def test_bad_fields_are_a_400_that_says_why(server, stated, message, stream):
    assert_refused(server, stated, message, stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_openais_own_prediction_is_a_reference(server, baseline, kind, stream):
    """The oracle drafts from references and from nothing else."""
    plain = {**request(1), "stated": {}, "kind": kind, "stream": stream, "max_tokens": 24, "stop": None}
    [expected] = answers(baseline, [plain])
    oracle = {**plain, "stated": {"specplug_proposer": "oracle"}}
    predictions: list[Any] = [
        None,
        PREDICTION,
        {"type": "content", "content": [{"type": "text", "text": expected[0][0]}]},
    ]
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
    given = {"model": MODEL, "stream": stream, "prediction": prediction, "custom_params": stated}
    for path, body in (
        ("/v1/completions", {"prompt": "x", "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
    ):
        code, text = raw(server, path, {**given, **body})
        assert code == 400, text
        found = json.loads(text)
        assert message in found.get("error", found)["message"]


def test_a_server_without_specplug_does_not_look_at_predictions(baseline):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "prediction": "a text"}
    assert raw(baseline, "/v1/chat/completions", body)[0] == 200


def test_the_openai_client_raises_its_own_error(server):
    import openai

    with pytest.raises(openai.BadRequestError, match="Did you mean 'specplug_tenant'"):
        server.client().completions.create(
            model=MODEL, prompt="x", stream=True, extra_body={"custom_params": {"specplug_tenat": "a"}}
        )


def test_a_client_that_leaves_does_not_disturb_the_others(server):
    async def leave() -> None:
        async with server.async_client() as client:
            stream = await client.completions.create(
                model=MODEL,
                prompt="x = 1\n",
                max_tokens=600,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True, "custom_params": {"specplug_references": REFERENCE}},
            )
            async for _ in stream:
                break
            await stream.close()

    before = answers(server, [request(4)])
    asyncio.run(leave())
    assert answers(server, [request(4)]) == before


def test_too_long_a_prompt_is_a_400_with_fields_too(server):
    body = {"model": MODEL, "prompt": [5] * 2000, "max_tokens": 4, "custom_params": {"specplug_tenant": "a"}}
    code, text = raw(server, "/v1/completions", body)
    assert code == 400, text


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(yes|no), [0-9]{3}"},
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
