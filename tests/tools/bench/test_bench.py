"""`specplug bench` against small servers in simulated time: what it sends, when it ends, and what it reports."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from functools import partial

import pytest

from specplug.tools.bench import run
from specplug.tools.client.answers import Answer
from specplug.tools.client.http import ServerClient
from tests.tools.bench.server import TOKENS, Clock, FakeServer
from tests.tools.cli.tools import invoke, stated

bench = partial(invoke, "bench")


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Return the clock by which servers take time."""
    found = Clock()
    monkeypatch.setattr(run, "time", found)
    return found


@pytest.fixture
def server(clock) -> FakeServer:
    return FakeServer(clock)


@pytest.fixture
def prompts(tmp_path):
    """Return a file of 24 prompts of two kinds."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{number:02d} text", "kind": ("code", "chat")[number % 2]} for number in range(24)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def kind_of(prompt: str) -> str:
    return ("code", "chat")[int(prompt[:2]) % 2]


# -- one server --------------------------------------------------------------------------------------------------------


def test_each_prompt_is_warmed_and_answered_in_both_modes_in_turn(server, prompts):
    with server.running() as url:
        found = stated("bench", url, prompts, "--until", "end")
    sent = server.requests[1:]  # the first one is of the short pair that answers are fitted by
    assert len(sent) == 72
    triples = [sent[place : place + 3] for place in range(0, 72, 3)]
    orders = Counter(tuple(what for what, _ in triple) for triple in triples)
    assert set(orders) == {("warm", "on", "off"), ("warm", "off", "on")}
    assert all(len({prompt for _, prompt in triple}) == 1 for triple in triples)
    assert len({triple[0][1] for triple in triples}) == 24
    assert server.stored == 0
    (course,) = found["runs"]
    first, *kinds = course["rows"]
    assert (first["kind"], first["prompts"], first["verdict"]) == ("all", 24, "faster")
    assert first["ratio"]["value"] == pytest.approx(2.0)
    assert (first["tested"]["tokens_per_second"], first["baseline"]["tokens_per_second"]) == (16.0, 8.0)
    assert (first["tested"]["tokens_per_step"], first["tested"]["acceptance_rate"]) == (4.0, 0.5)
    assert {row["kind"]: row["prompts"] for row in kinds} == {"code": 12, "chat": 12}
    assert found["texts"] == {"compared": 24, "identical": 24, "differences": []}
    assert (found["model"], found["tested"]["label"], course["ended"]) == ("fake", "speculation on", "prompts")


def test_the_run_ends_once_it_knows_and_says_what_gains(server, prompts):
    server.seconds = lambda prompt, drafted: (
        0.4 if drafted and kind_of(prompt) == "code" else 1.0 + int(prompt[:2]) / 1e4
    )
    with server.running() as url:
        shown = bench(url, prompts, code=0)
    assert len(server.requests) == 1 + 36, "at the first look"
    assert "1 in flight: faster, 1.43" in shown.stdout
    assert "by 12 prompts" in shown.stdout
    assert "gains: code 2.5" in shown.stdout
    stderr = " ".join(shown.stderr.split())
    assert "at most 2 minutes (--minutes) and 24 prompts" in stderr
    assert "12 prompts, 20 s: 1.43 (1.43 to 1.43)" in stderr, "progress"


@pytest.mark.parametrize(
    ("warm_seconds", "arguments", "length"),
    [
        (0.0, (), 64),
        (1.4, (), 20),  # 114.4 s are left for 24 prompts, of which 2.8 s are for 16 tokens, and 0.4 s for a further one
        (1.4, ("--limit", "8"), 44),
        (1.4, ("--minutes", "4"), 33),
        (9.0, (), 16),
        (9.0, ("--max-tokens", "24"), 24),
    ],
)
def test_answers_are_as_long_as_fits_into_the_minutes(server, prompts, warm_seconds, arguments, length):
    server.warm_seconds = warm_seconds
    server.seconds = lambda prompt, drafted: 0.1
    with server.running() as url:
        shown = bench(url, prompts, *arguments, code=0)
    sent = {body["max_tokens"] for body in server.received if "max_tokens" in body} - {1, 16}
    assert sent == ({length} - {16})
    assert ("answers of at most" in shown.stderr) is ("--max-tokens" not in arguments)
    assert f"of at most {length} tokens" in shown.stderr or "--max-tokens" in arguments


@pytest.mark.parametrize(
    ("seconds", "arguments", "pairs", "ended", "said"),
    [
        (lambda prompt, drafted: 1.0, (), 12, "decided", "no difference, 1.00 (1.000 to 1.000)"),
        (
            lambda prompt, drafted: 1 - drafted * (0.9 - int(prompt[:2]) / 40),
            ("--minutes", "0.15"),
            6,
            "minutes",
            "faster",
        ),
        (lambda prompt, drafted: 1.0 + (int(prompt[:2]) % 7) * drafted, (), 24, "prompts", "slower"),
        (
            lambda prompt, drafted: 1.0 + drafted * ((int(prompt[:2]) % 5) - 1.5) / 3,
            (),
            24,
            "prompts",
            "no difference shown",
        ),
        (lambda prompt, drafted: 0.5 if drafted else 1.0, ("--limit", "10"), 10, "decided", "faster"),
    ],
)
def test_ends_and_verdicts(server, prompts, seconds, arguments, pairs, ended, said):
    server.seconds = seconds
    with server.running() as url:
        found = stated("bench", url, prompts, *arguments)
        shown = bench(url, prompts, *arguments, code=0)
    (course,) = found["runs"]
    assert (course["rows"][0]["prompts"], course["ended"]) == (pairs, ended)
    assert said in shown.stdout
    assert ("more prompts would" in shown.stdout) is (said == "no difference shown")
    assert ("limit of time was reached" in shown.stdout) is (ended == "minutes")


def test_groups_are_in_flight_together_and_each_concurrency_has_its_run(server, prompts):
    server.together = threading.Barrier(3)  # none is answered before three are there
    with server.running() as url:
        found = stated("bench", url, prompts, "--concurrency", "3")
        server.together = None
        several = stated("bench", url, prompts, "--concurrency", "1,2")
        refused = bench(url, prompts, "--concurrency", "1,64", code=2)
    assert [row["prompts"] for row in found["runs"][0]["rows"]] == [24, 12, 12]
    assert [each["concurrency"] for each in several["runs"]] == [1, 2]
    assert "found 24 for 64 in flight; expected at least 128" in refused.stderr


def test_what_older_memory_gave_stands_apart(server, prompts):
    server.remembered = {"00 text", "01 text"}
    server.seconds = lambda prompt, drafted: 0.01 if drafted and prompt in server.remembered else 1.0 - drafted / 2
    with server.running() as url:
        found = stated("bench", url, prompts, "--until", "end")
        shown = bench(url, prompts, "--until", "end", code=0)
    first, *_, apart = found["runs"][0]["rows"]
    assert (first["prompts"], first["ratio"]["value"]) == (22, pytest.approx(2.0))
    assert (apart["kind"], apart["prompts"], apart["ratio"]["value"]) == (
        "(from older memory)",
        2,
        pytest.approx(100.0),
    )
    assert "answered for the most part from responses that the server remembers" in " ".join(shown.stdout.split())


def test_where_other_clients_are_served_counters_say_nothing_of_the_answers(server, prompts):
    """Their tokens come from older memory, and half of the time two of them are served beside."""

    def others(prompt: str, drafted: bool) -> float:
        if int(prompt[:2]) % 4 < 2:
            server.counts["emitted"] += 2 * TOKENS
            server.counts["target_steps"] += 2 * TOKENS
            server.memory["accepted"] += 2 * TOKENS
        return 0.5 if drafted else 1.0

    server.seconds = others
    with server.running() as url:
        found = stated("bench", url, prompts, "--until", "end")
        shown = bench(url, prompts, "--until", "end", code=0)
    first = found["runs"][0]["rows"][0]
    assert (first["prompts"], first["ratio"]["value"]) == (24, pytest.approx(2.0))
    assert first["tested"]["tokens_per_step"] == 4.0, "of the time in which nobody else was served"
    assert "Other clients were served during 12 of the prompts" in " ".join(shown.stdout.split())


def test_kinds_that_cancel_out_are_named(server, prompts, tmp_path):
    server.seconds = lambda prompt, drafted: 1 + drafted * (0.5 if kind_of(prompt) == "chat" else -0.5)
    prompts.write_text(prompts.read_text().replace('"code"', '"$x^$_code"'))  # formulas of plots have such
    with server.running() as url:
        shown = bench(url, prompts, "--html", tmp_path / "a.html", code=0)
    sentence, *_ = shown.stdout.splitlines()
    assert "no difference, 1.00" in sentence
    assert "gains: $x^$_code 2.00, loses: chat 0.67" in sentence


def test_where_older_memory_gave_everything_nothing_is_known(server, prompts, tmp_path):
    server.remembered = {f"{number:02d} text" for number in range(24)}
    with server.running() as url:
        shown = bench(url, prompts, "--limit", "4", "--html", tmp_path / "a.html", code=0)
    assert "nothing is known, as the server remembers answers" in shown.stdout
    assert "nothing is known" in (tmp_path / "a.html").read_text()


def test_reasoning_is_compared_and_timed(server, prompts):
    server.template = "<user>{}</user>"
    server.thinks = server.garbles = True
    with server.running() as url:
        found = stated("bench", url, prompts, "--limit", "4", code=1)
    assert {each["tested"] for each in found["texts"]["differences"]} == {"!"}
    assert len(found["texts"]["differences"]) == 4
    assert found["runs"][0]["rows"][0]["tested"]["ms_to_first"] > 0


@pytest.mark.parametrize(
    ("template", "arguments", "are_chats", "described"),
    [
        ("<user>{}</user>", (), True, "prompts are in the model's chat template"),
        ("<user>{}</user>", ("--raw",), False, "prompts are sent as they are (--raw)"),
        ("{}\n", (), False, "no chat template that marks roles"),  # the shipped models'
        (None, (), False, "no chat template that marks roles"),
    ],
)
def test_plain_prompts_are_chats_where_the_model_has_a_template(
    server, prompts, template, arguments, are_chats, described
):
    server.template = template
    with server.running() as url:
        result = bench(url, prompts, "--limit", "4", *arguments, code=0)
    assert server.chats == 8 * are_chats
    assert described in " ".join(result.stderr.split())


# -- two servers -------------------------------------------------------------------------------------------------------


def test_two_servers_answer_each_prompt_in_turn(server, clock, prompts):
    second = FakeServer(clock, specplug=False)
    second.seconds = lambda prompt, drafted: 0.75
    with server.running() as url, second.running() as other:
        found = stated("bench", url, other, prompts, "--until", "end")
        swapped = stated("bench", other, url, prompts, "--limit", "4")
    assert found["runs"][0]["rows"][0]["ratio"]["value"] == pytest.approx(1.5)
    assert swapped["runs"][0]["rows"][0]["ratio"]["value"] == pytest.approx(1 / 1.5)
    assert Counter(what for what, _ in server.requests[1:49]) == {"warm": 24, "on": 24}
    assert Counter(what for what, _ in second.requests[1:49]) == {"warm": 24, "off": 24}
    assert all("vllm_xargs" not in body for body in second.received), "it may refuse fields that it does not know"
    assert found["baseline"] == {"label": other, "url": other, "versions": {}}
    assert found["runs"][0]["rows"][0]["baseline"]["tokens_per_step"] is None


def test_a_server_against_itself_is_two_sides(server, prompts):
    """Every second answer takes three times as long; the coin decides whose it is."""
    seconds = itertools.cycle((1.0, 3.0))
    server.seconds = lambda prompt, drafted: next(seconds)
    with server.running() as url:
        found = stated("bench", url, url, prompts, "--until", "end")
    ratio = found["runs"][0]["rows"][0]["ratio"]
    assert ratio["low"] < 1 < ratio["high"]
    assert ratio["high"] / ratio["low"] > 2


def test_differing_texts_are_shown_with_what_they_mean(server, clock, prompts):
    second = FakeServer(clock, specplug=False)
    server.garbles = True
    with server.running() as url, second.running() as other:
        shown = bench(url, other, prompts, code=1)
        found = stated("bench", url, other, prompts, code=1)
    assert "texts differ; 1 in flight: faster" in shown.stdout
    assert "Texts identical on both sides: 0 of 12." in shown.stdout
    assert "compare the models, dtypes, chat templates" in shown.stdout
    assert len(found["texts"]["differences"]) == 12
    part = found["texts"]["differences"][0]
    assert (part["at"], part["tested"], part["baseline"]) == (7, "!", "")


def test_a_short_pair_that_fails_is_reported_and_the_other_one_decides(server, prompts):
    with server.running() as url:
        bench(url, prompts, code=0)
        server.fails = {server.requests[0][1]}  # the prompt of the short pair, which the run does not reach
        server.seconds = lambda prompt, drafted: 1.0
        server.warm_seconds = 1.4
        shown = bench(url, prompts, code=1)
        server.fails = {f"{number:02d} text" for number in range(24)}
        bench(url, prompts, code=2)
    assert "answers of at most 20 tokens" in shown.stderr
    assert "requests failed; 1 in flight: no difference, 1.00" in shown.stdout
    assert "error: a request failed: POST" in shown.stderr


def test_a_stream_that_comes_in_one_piece_tells_the_time_of_its_tokens():
    streamed, whole = (Answer(num_tokens=16, first=first, last=1.5) for first in (0.3, 1.5))
    assert run.Timed((streamed,), 1.5, {}).seconds_per_token == pytest.approx(1.2 / 15)
    assert run.Timed((whole,), 1.5, {}).seconds_per_token == pytest.approx(1.5 / 16)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_prompt_that_fails_is_left_out_and_named(server, prompts):
    server.fails = {"05 text"}
    with server.running() as url:
        shown = bench(url, prompts, "--until", "end", code=1)
        found = stated("bench", url, prompts, "--until", "end", code=1)
    assert "requests failed; 1 in flight: faster" in shown.stdout
    assert "error: a request failed: POST" in shown.stderr
    assert (found["runs"][0]["rows"][0]["prompts"], found["runs"][0]["failed_pairs"]) == (23, 1)
    assert "HTTP 500" in found["errors"][0]


def test_a_server_that_fails_midway_loses_nothing(server, prompts):
    server.dies_after = 3 * 9 + 2
    with server.running() as url:
        shown = bench(url, prompts, code=1)
    assert "requests failed; 1 in flight: faster, 2.00 (2.00 to 2.00), by 9 prompts" in shown.stdout
    assert "the run was ended" in shown.stdout


def test_a_server_that_hangs_is_a_failure(server, prompts):
    released = threading.Event()
    server.seconds = lambda prompt, drafted: released.wait() and 1.0
    with server.running() as url:
        shown = bench(url, prompts, "--minutes", "0.01", code=2)
        released.set()
    assert "no answer within" in shown.stderr


def test_ctrl_c_loses_nothing(server, prompts, monkeypatch):
    sent = ServerClient.stream

    async def interrupted(self, path, body):
        if len(server.requests) == 1 + 3 * 9:
            raise KeyboardInterrupt
        return await sent(self, path, body)

    monkeypatch.setattr(ServerClient, "stream", interrupted)
    with server.running() as url:
        shown = bench(url, prompts, code=130)
    assert "by 9 prompts" in shown.stdout
    assert "The run was interrupted." in shown.stdout


@pytest.mark.parametrize(
    ("spoil", "arguments", "said"),
    [
        (lambda server: server.routes.pop("/v1/models"), (), "no models are listed"),
        (lambda server: server.routes.pop("/specplug/status"), (), "bench URL_WITH_SPECPLUG URL"),
        (lambda server: server.routes.update({"/specplug/status": (503, {"error": "busy"})}), (), "HTTP 503"),
        (lambda server: setattr(server, "mode", "off"), (), "the operator has switched speculation off"),
        (lambda server: setattr(server, "ceiling", 0), (), "the operator allows no draft tokens"),
        (lambda server: setattr(server, "operator_key", "secret"), (), "--operator-key"),
        (lambda server: None, ("--model", "none"), "found none; expected fake"),
        (lambda server: server.fails.update(f"{number:02d} text" for number in range(24)), (), "HTTP 500"),
        (lambda server: None, ("http://127.0.0.1:9",), "http://127.0.0.1:9"),
        (lambda server: None, ("http://127.0.0.1:9", "http://127.0.0.1:8"), "found 3; expected one or two"),
        (lambda server: None, ("none.jsonl",), "cannot read prompts"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(server, prompts, spoil, arguments, said):
    spoil(server)
    with server.running() as url:
        result = bench(url, prompts, *arguments, code=2)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert said in line


def test_servers_of_different_models_are_refused(server, clock, prompts):
    second = FakeServer(clock, models=("other", "fake"))
    with server.running() as url, second.running() as other:
        refused = bench(url, other, prompts, code=2)
        bench(url, other, prompts, "--model", "fake", "--limit", "4", code=0)
    assert f"found fake at {url}, other at {other}" in refused.stderr


@pytest.mark.parametrize("api_key", [None, "client's"])
def test_the_operators_key_is_used(server, prompts, api_key):
    server.operator_key = "secret"
    server.api_key = api_key
    with server.running() as url:
        bench(url, prompts, "--operator-key", "secret\n", "--api-key", "client's", "--limit", "4", code=0)
        bench(url, prompts, "--operator-key", "another", "--api-key", "client's", code=2)
