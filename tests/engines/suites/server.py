"""Tests of every engine's server with specplug, called as users call it: inherit `ServerSuite` and name the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.engines.plain import prompts, tokenizer
from tests.engines.server import MODEL, Server

TEXTS = [tokenizer().decode(list(prompt)) for prompt in prompts()]
REFERENCE = "def area(radius):\n    return 3.14159 * radius * radius\n"
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "raises", "garbage"],
    "policy": "fixed",
    "limits": {"max_reference_tokens": 2000, "max_references": 2, "max_client_reference_tokens": 40_000},
    "options": {"raises": {"every": 2}},
}
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7},
]
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"specplug_enable": 1}, "specplug_enabled"),
    ({"specplug": "{"}, "JSON"),
    ({"specplug": json.dumps({"references": [{"text": "a", "txet": "b"}]})}, "txet"),
    ({"specplug_num_speculative_tokens": -1}, "num_speculative_tokens"),
    ({"specplug_proposer": "oracel"}, "oracle"),
    ({"specplug_references": "x " * 40000}, "too large"),
    ({"specplug_references": [5, 999999]}, "vocabulary"),
    ({"specplug_references": ["a", "b", "c"]}, "too many references"),
]
"""Wrong fields, and what the refusal says."""

PREDICTION = {"type": "content", "content": REFERENCE}
PREDICTIONS: list[tuple[Any, dict[str, Any], str]] = [
    ("a text", {}, "'prediction'"),
    ({"type": "content", "content": [{"type": "text", "txet": "a"}]}, {}, "'prediction.content.0.text'"),
    (PREDICTION, {"specplug_prediction": "a"}, "given twice"),
    (PREDICTION, {"specplug_references": ["a", "b"]}, "too many references"),
]
"""OpenAI's own field, specplug's fields beside it, and what the refusal says."""

SCHEMA = {
    "type": "object",
    "properties": {"x": {"enum": [1, 2]}, "kind": {"enum": ["a", "b"]}},
    "required": ["x", "kind"],
    "additionalProperties": False,
}
REGEX = "(yes|no), [0-9]{3}"

Answer = list[tuple[str, str | None]]
"""Text and finish reason of each choice."""


class ServerSuite:
    """The engine's tests give the fixtures `server`, with `SETTINGS`, and `baseline`, without specplug.

    Attributes:
        fields: the field of a request that holds specplug's.
        started: a part of the line that the server logs when it starts.
        values: specplug's fields, as ten kinds of requests have them.
        kinds: endpoints, by turns.
        twice: every so many requests asks for two choices; 0 for none.
        paths: further endpoints that take predictions, each with a body.
        regex: arguments that constrain a completion to `REGEX`.
    """

    fields: ClassVar[str]
    started: ClassVar[str]
    values: ClassVar[tuple[dict[str, Any], ...]]
    kinds: ClassVar[tuple[str, ...]] = ("chat", "completion", "completion")
    twice: ClassVar[int] = 0
    paths: ClassVar[tuple[tuple[str, dict[str, Any]], ...]] = ()
    regex: ClassVar[dict[str, Any]]
    usage: Any = None  # of the newest answer

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(self, number: int) -> dict[str, Any]:
        """Return one of a hundred requests, no two of them alike in text, sampling, endpoint and specplug's fields."""
        return {
            "text": TEXTS[number % len(TEXTS)],
            "fields": self.values[number % len(self.values)],
            "kind": self.kinds[number % len(self.kinds)],
            "stream": number % 2 == 0,
            "max_tokens": 4 + number % 13,
            "n": 2 if self.twice and number % self.twice == 0 else 1,
            "stop": ["\n\n", "return"] if number % 5 == 0 else None,
            **SAMPLED[number % len(SAMPLED)],
        }

    async def ask(self, client: Any, given: dict[str, Any]) -> Answer:
        """Send one request by the `openai` client."""
        own = ("text", "fields", "kind", "prediction")
        arguments = {name: value for name, value in given.items() if name not in own}
        arguments |= {"model": MODEL, "extra_body": {self.fields: given["fields"]} if given["fields"] else {}}
        chat = given["kind"] == "chat"
        if given.get("prediction") is not None:
            (arguments if chat else arguments["extra_body"])["prediction"] = given["prediction"]
        if given["stream"]:
            arguments["stream_options"] = {"include_usage": True}
        if chat:
            messages = [{"role": "user", "content": given["text"]}]
            answer = await client.chat.completions.create(messages=messages, **arguments)
        else:
            answer = await client.completions.create(prompt=given["text"], **arguments)
        if not given["stream"]:
            assert answer.usage.completion_tokens
            self.usage = answer.usage
            return [((each.message.content if chat else each.text), each.finish_reason) for each in answer.choices]
        texts = [""] * given["n"]
        reasons = [""] * given["n"]
        count = 0
        async for piece in answer:
            self.usage = piece.usage or self.usage
            count = piece.usage.completion_tokens if piece.usage else count
            for choice in piece.choices:
                texts[choice.index] += (choice.delta.content if chat else choice.text) or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        assert count
        return list(zip(texts, reasons, strict=True))

    def answers(
        self, server: Server, given: list[dict[str, Any]], beside: Callable[[], None] | None = None
    ) -> list[Answer]:
        """Send everything at once, and run a function of the test meanwhile."""

        async def together() -> list[Any]:
            async with server.async_client() as client:
                requests = [self.ask(client, one) for one in given]
                if beside is not None:
                    requests.append(asyncio.to_thread(beside))
                return await asyncio.gather(*requests)

        found = asyncio.run(together())
        return found if beside is None else found[:-1]

    def bodies(self, fields: dict[str, Any], stream: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return requests with specplug's fields as they go over HTTP: paths and bodies."""
        given = {"model": MODEL, "stream": stream, "max_tokens": 4, self.fields: fields}
        return [
            ("/v1/completions", {"prompt": "x", **given}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **given}),
        ]

    def assert_refused(self, server: Server, fields: dict[str, Any], message: str, stream: bool) -> None:
        """Every endpoint answers with a 400 that names the reason."""
        for path, body in self.bodies(fields, stream):
            answer = server.ask(path, body)
            assert answer.code == 400, answer.body
            assert message in answer.error

    # -- tests ---------------------------------------------------------------------------------------------------------

    def test_the_log_says_once_what_runs(self, server):
        server.running()
        (line,) = [line for line in server.log().splitlines() if "up to 8 draft tokens" in line]
        expected = f"ngram + oracle + raises + garbage, policy fixed, up to 8 draft tokens, {self.started}; "
        assert f"{expected}/specplug/status: on, " in line

    def test_a_hundred_mixed_requests_at_once(self, server, baseline):
        """Mistakes among them, which spoil nothing."""
        given = [self.request(number) for number in range(100)]

        def mistakes() -> None:
            for stream in (False, True):
                for fields, message in MISTAKES:
                    self.assert_refused(server, fields, message, stream)

        found = self.answers(server, given, mistakes)
        assert all(reason in ("stop", "length") for answer in found for _, reason in answer)
        greedy = [number for number, one in enumerate(given) if one["temperature"] == 0]
        plain = self.answers(baseline, [{**given[number], "fields": {}} for number in greedy])
        differing = [
            (given[number], found[number], truth)
            for number, truth in zip(greedy, plain, strict=True)
            if found[number] != truth
        ]
        assert len(greedy) == 50
        assert not differing
        assert self.answers(server, given[:1]) == found[:1], "the server is well afterwards"

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("kind", ["chat", "completion"])
    def test_openais_own_prediction_is_a_reference(self, server, baseline, kind, stream):
        """The oracle drafts from references and from nothing else."""
        plain = {**self.request(1), "fields": {}, "kind": kind, "stream": stream, "max_tokens": 24, "stop": None}
        [expected] = self.answers(baseline, [plain])
        oracle = {**plain, "fields": {"specplug_proposer": "oracle"}}
        parts = {"type": "content", "content": [{"type": "text", "text": expected[0][0]}]}
        drafted = []
        counted = []
        for prediction in (None, PREDICTION, parts):
            before = total(server, "proposed")
            assert self.answers(server, [{**oracle, "prediction": prediction}]) == [expected]
            drafted.append(total(server, "proposed") - before)
            details = self.usage.completion_tokens_details
            counts = details and (details.accepted_prediction_tokens, details.rejected_prediction_tokens)
            counted.append(counts)
            assert details is None or not details.reasoning_tokens
        assert drafted[0] == 0
        assert min(drafted[1:]) > 0
        assert counted[0] in (None, (None, None)), "no prediction, no counts"
        assert sum(counted[1]) > 0
        accepted, rejected = counted[2]
        assert accepted > 4 * rejected, "most of it came, whatever its first and last tokens are"
        assert accepted <= self.usage.completion_tokens

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(("prediction", "fields", "message"), PREDICTIONS)
    def test_a_bad_prediction_is_a_400_that_says_why(self, server, prediction, fields, message, stream):
        given = {"model": MODEL, "stream": stream, "prediction": prediction, self.fields: fields}
        for path, body in (
            ("/v1/completions", {"prompt": "x", "max_tokens": 4}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
            *self.paths,
        ):
            answer = server.ask(path, {**given, **body})
            assert answer.code == 400, answer.body
            assert message in answer.error

    def test_structured_output_and_logprobs_equal_the_baselines(self, server, baseline):
        schema = {"type": "json_schema", "json_schema": {"name": "point", "schema": SCHEMA}}
        for more in (self.regex, {"response_format": schema}, {"logprobs": 2}):
            body = {"model": MODEL, "prompt": TEXTS[0], "temperature": 0, "max_tokens": 48, **more}
            answers = [one.ask("/v1/completions", body).json for one in (server, baseline)]
            found, expected = (answer["choices"][0] for answer in answers)
            assert found["text"] == expected["text"]
            if "logprobs" in more:
                found = found["logprobs"]
                expected = expected["logprobs"]
                assert found["tokens"] == expected["tokens"]
                assert found["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-3)


def metrics(server: Server) -> dict[str, Any]:
    """Return the metrics of the one worker."""
    [worker] = server.ask("/specplug/status").json["engines"][0]["workers"]
    return worker["metrics"]


def total(server: Server, name: str) -> int:
    """Return a counter of all sources."""
    return metrics(server)["total"][name]
