"""`specplug bench` against a small server of our own: what it sends, in which mode, and what it reports."""

from __future__ import annotations

import json
import math
import statistics
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from specplug.errors import SettingsError, TraceError
from specplug.tools.bench import report
from specplug.tools.bench.prompts import Block, Prompt, assign_blocks, read_prompts
from specplug.tools.bench.report import LEVEL, look_counts, ratio, rows
from specplug.tools.bench.run import Measured
from specplug.tools.client.answers import Answer
from tests.tools.bench.server import COUNTS, FakeServer
from tests.tools.cli.tools import invoke

bench = partial(invoke, "bench")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{number:02d}" * (number + 1)}) + "\n" for number in range(24)))
    return path


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_prompts_are_read_from_traces_and_chat_logs_without_repeats(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "one", "output": "x"}\n\n{"prompt": "one", "output": "y"}\n')
    chat = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "answer"}]
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    found = read_prompts([tmp_path])
    assert found == [Prompt("one"), Prompt(messages=(chat[0],))]
    assert [prompt.path for prompt in found] == ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("5", "int"),
        ('{"text": "a"}', "'text'"),
        ('{"prompt": ""}', "'prompt'"),
        ('{"messages": ["a"]}', "'messages'"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "'messages'"),
    ],
)
def test_a_line_without_a_prompt_is_named(tmp_path, line: str, found: str):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(TraceError, match=r"bad\.jsonl, line 2") as error:
        read_prompts([path])
    assert found in str(error.value)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=12, max_size=60),
    concurrencies=st.sampled_from([[1], [2], [1, 2]]),
    pairs=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_every_prompt_is_dealt_once_at_most_and_pairs_are_alike(sizes, concurrencies, pairs, seed):
    prompts = [Prompt(f"{number} " + "x" * size) for number, size in enumerate(sizes)]
    try:
        blocks = assign_blocks(prompts, concurrencies, pairs, seed)
    except SettingsError:
        assert len(prompts) // (2 * pairs * len(concurrencies)) < max(concurrencies)
        return
    sent = Counter(prompt for block in blocks for prompt in block.prompts)
    assert set(sent.values()) == {1}
    assert set(sent) <= set(prompts)
    assert [(block.concurrency, block.pair) for block in blocks] == [
        (concurrency, pair) for concurrency in concurrencies for pair in range(pairs) for _ in range(2)
    ]
    for one, other in zip(blocks[::2], blocks[1::2], strict=True):
        assert [one.mode, other.mode] == (["off", "on"] if one.pair % 2 == 0 else ["on", "off"])
        assert len(one.prompts) == len(other.prompts) >= one.concurrency
        longest = max(prompt.size for prompt in (*one.prompts, *other.prompts))
        difference = sum(prompt.size for prompt in one.prompts) - sum(prompt.size for prompt in other.prompts)
        assert abs(difference) <= longest  # alternating by size: they differ by less than one prompt


# -- the run -----------------------------------------------------------------------------------------------------------


def test_blocks_alternate_on_the_server_which_is_put_back(prompts):
    server = FakeServer()
    server.mode = "off"
    with server.running() as url:
        result = bench(url, prompts, "--concurrency", "1", "--pairs", "2", "--check", "2", "--json", code=0)
    stated = json.loads(result.stdout)
    assert server.switched == ["off", "on", "on", "off", "off", "on", "off"]  # four blocks, the check, as it was
    assert [mode for mode, _ in server.requests] == 6 * ["off"] + 12 * ["on"] + 6 * ["off"] + 2 * ["off"] + 2 * ["on"]
    timed = [prompt for _, prompt in server.requests[:24]]
    assert len(set(timed)) == 24
    (row,) = stated["rows"]
    assert row["on"]["requests"] == row["off"]["requests"] == 12
    assert row["tokens_per_step"] == 4.0
    assert row["acceptance_rate"] == 0.5
    assert stated["check"] == {"identical": 2, "requested": 2}
    assert stated["model"] == "fake"


def test_so_many_requests_are_in_flight(prompts):
    server = FakeServer()
    server.together = threading.Barrier(3)  # none is answered before three are there
    with server.running() as url:
        bench(url, prompts, "--concurrency", "3", "--pairs", "2", "--check", "0", "--json", code=0)
    assert server.most_in_flight == 3


def test_changed_texts_and_failed_requests_are_shown_and_counted(prompts):
    server = FakeServer()
    server.garbles, server.fails = True, {"00"}
    with server.running() as url:
        shown = bench(url, prompts, "--concurrency", "1", "--pairs", "1", code=1)
        result = bench(url, prompts, "--concurrency", "1", "--pairs", "1", "--check", "0", "--json", code=1)
    assert "Texts identical in both modes: 0 of 4" in shown.stdout
    assert "a request failed: " in shown.stderr
    stated = json.loads(result.stdout)
    assert stated["rows"][0]["off"]["failed"] + stated["rows"][0]["on"]["failed"] == 1
    assert "HTTP 500" in stated["errors"][0]


def test_a_server_that_answers_nothing_ends_the_run_with_its_mode_put_back(prompts):
    server = FakeServer()
    server.fails = {f"{number:02d}" * (number + 1) for number in range(24)}
    with server.running() as url:
        result = bench(url, prompts, "--concurrency", "1", "--pairs", "1", code=2)
    assert "no request of a block was answered" in result.stderr
    assert server.switched[-1] == "on"


def test_the_operators_key_is_requested_for_and_used(prompts):
    server = FakeServer()
    server.operator_key = "secret"
    with server.running() as url:
        refused = bench(url, prompts, "--concurrency", "1", "--pairs", "1", code=2)
        bench(url, prompts, "--concurrency", "1", "--pairs", "1", "--operator-key", "secret", "--json", code=0)
    assert "--operator-key" in refused.stderr


def test_too_few_prompts_say_how_many_it_takes(prompts):
    result = bench("http://127.0.0.1:9", prompts, "--concurrency", "1,64", code=2)
    assert "found 24 for 12 blocks; expected at least 768" in result.stderr


@pytest.mark.parametrize(
    ("template", "arguments", "are_chats", "described"),
    [
        ("<user>{}</user>", (), True, "prompts are in the model's chat template"),
        ("<user>{}</user>", ("--raw",), False, "prompts are sent as they are (--raw)"),
        ("{}\n", (), False, "no chat template that marks roles"),  # the shipped models'
        (None, (), False, "no chat template that marks roles"),
    ],
)
def test_plain_prompts_are_chats_where_the_model_has_a_template(prompts, template, arguments, are_chats, described):
    server = FakeServer()
    server.template = template
    with server.running() as url:
        result = bench(url, prompts, "--concurrency", "1", "--pairs", "1", *arguments, code=0)
    assert (len(server.requests), server.chats) == (32, 32 * are_chats)
    assert described in " ".join(result.stderr.split())


def test_until_goes_on_with_pairs_until_it_knows(prompts, monkeypatch):
    original = report.rows

    def timed(measured, first_look=None):
        on = [1 / 1.5, 1 / 2.0, 1 / 1.8, 1 / 1.7]  # two pairs show nothing yet, four do
        seconds = [1.0 if each.block.mode == "off" else on[each.block.pair] for each in measured]
        return original(
            [replace(each, seconds=times) for each, times in zip(measured, seconds, strict=True)], first_look
        )

    monkeypatch.setattr(report, "rows", timed)
    server = FakeServer()
    with server.running() as url:
        result = bench(url, prompts, "--concurrency", "1", "--pairs", "2", "--check", "0", "--until", "--json", code=0)
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["pairs"], row["verdict"], len(server.requests)) == (4, "faster", 16)  # of 6 pairs and 24 prompts


# -- the report --------------------------------------------------------------------------------------------------------


def block_of(pair: int, mode: str, tokens: int, seconds: float) -> Measured:
    answers = tuple(Answer(text="text", num_tokens=tokens, first=0.5, last=seconds) for _ in range(2))
    return Measured(Block(2, pair, mode, (Prompt("a"), Prompt("b"))), answers, seconds, dict(COUNTS))


def test_ratios_are_those_of_pairs():
    measured = [
        block_of(pair, mode, 11, seconds)
        for pair in range(3)
        for mode, seconds in (("off", 8.5 + pair), ("on", 4.5 + pair / 2))
    ]
    (row,) = rows(measured)
    speeds = [(8.5 + pair) / (4.5 + pair / 2) for pair in range(3)]
    assert row.throughput.mean == pytest.approx(math.prod(speeds) ** (1 / 3))
    assert row.time_per_token is not None
    assert row.time_per_token.mean == pytest.approx(2.0)
    assert row.off.ms_per_token == pytest.approx(900.0)
    assert row.on.ms_to_first == pytest.approx(500.0)
    assert row.tokens_per_step is None


def test_the_interval_is_students():
    found = ratio([math.log(2.0), math.log(4.0), math.log(8.0)])
    reach = 4.302653 * math.log(2.0) / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((4.0, 4 * math.exp(-reach), 4 * math.exp(reach)))
    assert found.verdict == "no difference shown"
    assert ratio([math.log(2.0), math.log(2.1), math.log(2.2)]).verdict == "faster"
    assert ratio([math.log(0.5), math.log(0.51), math.log(0.52)]).verdict == "slower"
    assert ratio([math.log(2.0)]).verdict == "no difference shown"
    assert ratio([math.log(2.0), math.log(2.1), math.log(2.2)]).needed is None
    assert ratio([-0.5, 0.0, 0.5001]).needed is None, "a negligible difference asks for no prompts"


def test_too_wide_an_interval_says_how_many_more_prompts_it_takes():
    factors = (1.0, 3.0, 3.6)  # 2.21, and 1 within the interval
    measured = [
        block_of(pair, mode, 11, 2.0 if mode == "off" else 2.0 / factor)
        for pair, factor in enumerate(factors)
        for mode in ("off", "on")
    ]
    (row,) = rows(measured)
    needed = row.throughput.needed
    assert needed is not None
    assert needed > 3
    deviation = statistics.stdev(map(math.log, factors))
    for pairs, is_enough in ((needed, True), (needed - 1, False)):
        quantiles = t.ppf(0.975, pairs - 1) + t.ppf(0.8, pairs - 1)
        assert bool(quantiles * deviation / math.sqrt(pairs) < math.log(row.throughput.mean)) is is_enough
    assert f"about {(needed - 3) * 4} more prompts" in row.advice  # two prompts in each of a pair's two blocks
    assert f"--pairs {needed}" in row.advice
    assert rows(measured[:2])[0].advice.endswith("give --pairs 3 or more")


@given(st.integers(1, 40), st.integers(1, 200))
def test_looks_share_the_level(first: int, most: int):
    found = look_counts(first, most)
    assert found[-1] == most
    assert all(b <= 2 * a for a, b in pairwise(found))
    assert sum(LEVEL / 2 ** len(look_counts(first, pairs)) for pairs in found) < LEVEL


def test_failed_requests_are_left_out():
    failed = Measured(
        Block(2, 0, "on", (Prompt("a"), Prompt("b"))),
        (Answer(error="x"), Answer(text="t", num_tokens=11, first=0.5, last=1.5)),
        2.0,
        dict(COUNTS),
    )
    (row,) = rows([block_of(0, "off", 11, 2.0), failed])
    assert row.on.failed == 1
    assert row.on.tokens_per_second == pytest.approx(5.5)
    assert row.throughput.mean == pytest.approx(0.5)
