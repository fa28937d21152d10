"""Every check of the soak finds what it looks for, planted in a server that runs no model."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.text.tokenizers import wrap
from tests.engines.launch import ROOT
from tests.engines.plain import tokenizer
from tests.engines.suites.server import MISTAKES
from tests.soak import leaks
from tests.soak.client import Outcome
from tests.soak.faults import UNWRITTEN, Faults, files_limited
from tests.soak.judge import LEAST_P, Judge
from tests.soak.report import LEAST_NAMED, Report
from tests.soak.run import Plant, Soak, with_wrong_token
from tests.soak.stub_server import TOKEN
from tests.soak.targets import PROPOSERS, TARGETS
from tests.soak.traffic import CORPORA, SHARES, Request, Traffic
from tests.soak.truth import Prompt, Truth, exact

PROMPT = (5, 6, 7, 8)
ANSWER = (TOKEN,) * 20
KINDS = ("greedy", "aborted", "disconnected", "bad", "structured", "long")


@pytest.fixture
def truth() -> Truth:
    """What the stub answers."""
    prompts = tuple(Prompt((*PROMPT, number), ANSWER) for number in range(9))
    return Truth(prompts, (Prompt(PROMPT, ANSWER, ignores_end=True),), prompts[:2], prompts[:1], 4)


@contextmanager
def stub(failure: str) -> Iterator[tuple[str, int]]:
    """Start the stub; yield its address and session."""
    command = [sys.executable, "-m", "tests.soak.stub_server", failure, json.dumps(MISTAKES)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **given) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


def soak(
    truth: Truth,
    monkeypatch: pytest.MonkeyPatch,
    failure: str = "none",
    plant: Plant | None = None,
    count: int = 200,
    kills: bool = False,
    judge: Judge | None = None,
) -> Report:
    """Soak the stub, which samples nothing."""
    monkeypatch.setattr("tests.soak.run.DRAIN_SECONDS", 0.5)
    monkeypatch.setitem(leaks.TOLERANCES, "threads", leaks.TOLERANCES["connections"])  # the stub has one for each
    given = with_wrong_token(truth) if plant == "token" else truth
    traffic = (request for request in Traffic(given, 1, PROPOSERS) if request.kind != "sampled")
    with stub(failure) as (url, session):
        run = Soak(TARGETS["vllm"], url, session, Path("/dev/null"), truth, traffic, plant=plant, pause=0.05, every=10)
        run = replace(run, kills=kills, judge=judge or Judge())
        report = asyncio.run(run.run(count, 1.0))
        assert not (kills and leaks.processes(session))
        return report


def test_a_sound_server_passes(truth, monkeypatch):
    report = soak(truth, monkeypatch)
    assert report.failures == []
    assert report.judge.compared > 80
    assert report.as_dict()["ok"]
    assert list(report.lines())[-1] == "  passed"
    assert all(report.judge.kinds[kind] for kind in KINDS)


def test_servers_that_are_killed_are_judged_each_alone_and_counted_together(truth, monkeypatch):
    monkeypatch.setattr(leaks, "LEAST_SAMPLES", 4)
    judge = Judge()
    lives = [soak(truth, monkeypatch, count=100, kills=kills, judge=judge) for kills in (True, False)]
    assert [life.failures for life in lives] == [[], []]
    assert all(life.growths for life in lives)
    report = Report.joined(lives)
    assert report.accepted == sum(life.accepted for life in lives)
    assert report.faults == lives[0].faults + lives[1].faults
    assert len(report.growths) == 2 * len(lives[0].growths)
    assert (report.first, report.last) == (lives[1].first, lives[1].last)
    crashed = replace(lives[1], crash="gone")
    assert Report.joined([lives[0], crashed]).failures == ["crash: gone"]
    leaking = soak(truth, monkeypatch, "memory", count=400, judge=judge)
    assert any("leak of memory" in each for each in Report.joined([*lives, leaking]).failures)


@pytest.mark.parametrize(
    ("failure", "plant", "found"),
    [
        ("none", "token", "wrong tokens in"),
        ("none", "crash", "crash: processes"),
        ("memory", None, "leak of memory"),
        ("threads", None, "leak of threads"),
        ("files", None, "leak of files"),
        ("none", "connections", "leak of connections"),
        ("slots", None, "slots are occupied when no request runs"),
    ],
)
def test_a_planted_failure_is_found(truth, monkeypatch, failure, plant, found):
    monkeypatch.setattr(leaks, "LEAST_SAMPLES", 4)  # the stub does not warm up
    report = soak(truth, monkeypatch, failure, plant, count=400)
    assert any(found in each for each in report.failures), "\n".join(report.lines())
    assert not report.as_dict()["ok"]


# -- single checks -----------------------------------------------------------------------------------------------------


REFUSED = '{"error": {"message": "references are too large"}}'
GREEDY = Request(0, "greedy", Prompt(PROMPT, ANSWER), max_tokens=6)
ABORTED = replace(GREEDY, kind="aborted", stream=True, events=2)
BAD = replace(GREEDY, kind="bad", refusal="too large")
SAMPLED = replace(GREEDY, kind="sampled")
STRUCTURED = replace(GREEDY, kind="structured", prompt=Prompt(PROMPT, ANSWER, schema={"type": "object"}))


@pytest.mark.parametrize(
    ("request_", "outcome", "found"),
    [
        (GREEDY, {"token_ids": ANSWER[:6]}, "right"),
        (GREEDY, {"token_ids": (*ANSWER[:5], 9)}, "wrong"),
        (GREEDY, {"token_ids": ANSWER[:5]}, "wrong"),
        (GREEDY, {"token_ids": ANSWER[:7]}, "wrong"),
        (GREEDY, {"token_ids": ANSWER[:6], "finish_reason": None}, "failed"),
        (GREEDY, {"status": 500}, "failed"),
        # What arrived before a client left is a prefix.
        (ABORTED, {"token_ids": ANSWER[:2], "left": True, "finish_reason": None}, "right"),
        (ABORTED, {"token_ids": (TOKEN, 9), "left": True, "finish_reason": None}, "wrong"),
        # Sampled answers end early only by themselves, and not before they begin.
        (SAMPLED, {"token_ids": ANSWER[:6]}, "right"),
        (SAMPLED, {"token_ids": ANSWER[:5], "finish_reason": "stop"}, "right"),
        (SAMPLED, {"token_ids": ANSWER[:5]}, "failed"),
        (SAMPLED, {"token_ids": (), "finish_reason": "stop"}, "failed"),
        # Bad fields are refused with the reason.
        (BAD, {"status": 400, "text": REFUSED}, "right"),
        (BAD, {"status": 400, "text": "{}"}, "failed"),
        (BAD, {"status": 500, "text": REFUSED}, "failed"),
        (BAD, {}, "failed"),
        # The tokens are the control's, and no JSON.
        (STRUCTURED, {"token_ids": ANSWER[:6], "finish_reason": "stop"}, "failed"),
    ],
)
def test_an_outcome_is_judged(request_, outcome, found):
    judge = Judge()
    judge.take(Outcome(request_, **{"status": 200, "finish_reason": "length", **outcome}))
    assert (judge.wrong, judge.failed) == (found == "wrong", found == "failed")
    assert len(judge.problems) == (found != "right")


SAMPLE = leaks.Sample(1, leaks.MIB, 1, 1, 0)
RIGHT = Report("vllm", 1.0, Judge(compared=1), {}, [], [], SAMPLE, SAMPLE, 0, 1, True, {}, None)


@pytest.mark.parametrize(
    ("faults", "named", "failures"),
    [
        ({"ngram": {"raised": 3}}, 0, ["ngram is sound, and 3 times raised"]),
        ({"ngram": {"malformed": 1}}, 0, ["ngram is sound, and 1 times malformed"]),
        ({"ngram": {"late": 9, "switched off": 1}}, LEAST_NAMED - 1, []),
        ({"raises": {"raised": 9}, "garbage": {"malformed": 9}}, LEAST_NAMED, []),
        (
            {"raises": {"raised": 9}, "garbage": {"late": 9}},
            LEAST_NAMED,
            ["20 requests named garbage: never malformed"],
        ),
    ],
)
def test_the_planted_proposers_fail_and_no_others(faults, named, failures):
    judge = Judge(variants=Counter(dict.fromkeys(PROPOSERS, named)), compared=1)
    assert replace(RIGHT, judge=judge, proposer_faults=faults).failures == failures


def test_a_run_without_requests_fails():
    assert replace(RIGHT, judge=Judge(), drafts=False, accepted=0).failures == ["no output was compared"]


def test_a_server_that_is_not_watched_fails_or_was_short(truth, monkeypatch):
    monkeypatch.setattr("tests.soak.run.SAMPLE_SECONDS", 100.0)
    short = soak(truth, monkeypatch, count=9)
    found = Report.joined([short, replace(RIGHT, unwatched=[leaks.LEAST_SAMPLES - 1])])
    assert found.failures == []
    assert sum("not judged, as none of" in line for line in found.lines()) == 2
    assert "not judged" in "".join(replace(RIGHT, unwatched=[leaks.LEAST_SAMPLES]).failures)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_sampled_tokens_must_follow_the_distribution(share):
    """A share of the outputs are the likeliest token, as if it was accepted whatever the target says."""
    generator, judge, prompt = torch.Generator().manual_seed(3), Judge(), Prompt(PROMPT)
    for number in range(400):
        tokens: tuple[int, ...] = ()
        for _ in range(2):
            probs = exact((*PROMPT, *tokens), 1.0, 0)
            forced = number < share * 400
            tokens += (int(probs.argmax() if forced else torch.multinomial(probs, 1, generator=generator)),)
        request = Request(number, "sampled", prompt, max_tokens=2)
        judge.take(Outcome(request, 200, tokens, "length"))
    [p] = [found.p for found in judge.sampled().values()]
    assert (p < LEAST_P) == (share > 0)


def test_traffic_repeats_itself_by_its_seed_and_holds_all_kinds(truth):
    def first(seed: int) -> list[Request]:
        return list(itertools.islice(Traffic(truth, seed, PROPOSERS), 600))

    assert first(1) == first(1) != first(2)
    assert {request.kind for request in first(1)} == set(SHARES)
    assert {*PROPOSERS, "none", "disabled", "prediction", "tenant", "corpora"} <= {r.variant for r in first(1)}


def test_a_short_run_judges_no_memory():
    samples = [leaks.Sample(number, number << 30, 1, 1, 0) for number in range(leaks.LEAST_SAMPLES - 1)]
    assert [growth.is_flat for growth in leaks.growths(samples)] == [True] * 4
    assert not leaks.growths([*samples, samples[-1]])[0].is_flat


@pytest.mark.parametrize(
    ("fault", "status", "text", "is_right"),
    [
        ("wrong_order", 400, "", True),
        ("wrong_order", 500, "", False),
        ("wrong_order", 200, "", False),
        ("disk_full", 500, f"a file {UNWRITTEN}", True),
        ("disk_full", 500, "Internal Server Error", False),
        ("disk_full", 200, "", False),
    ],
)
def test_a_crash_is_no_refusal(truth, fault, status, text, is_right):
    def answer(request: httpx.Request) -> httpx.Response:
        is_refused = "mode" in request.url.path or len(request.content) > 10_000
        return httpx.Response(status if is_refused else 200, text=text)

    async def problems() -> list[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://soaked") as http:
            faults = Faults(http, TARGETS["vllm"], truth, -1, None, 0)
            await getattr(faults, fault)()
            return faults.problems

    assert (asyncio.run(problems()) == []) == is_right


@pytest.mark.parametrize(("present", "added"), [(3, 1), (4, 0)])
def test_what_changes_nothing_is_no_fault(truth, tmp_path, present, added):
    """The first fault adds a corpus, if one is absent; the second removes one, and ends the test."""
    store = Store.create(tmp_path / "store", wrap(tokenizer()).fingerprint)
    for name in CORPORA[:present]:
        store.add(name, [Document("a", np.array(PROMPT, np.int32))])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            raise asyncio.CancelledError
        return httpx.Response(200)

    async def counts() -> Counter[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://soaked") as http:
            faults = Faults(http, TARGETS["vllm"], truth, -1, tmp_path / "store", 0)
            with suppress(asyncio.CancelledError):
                await faults.inject(0.0)
            return faults.counts

    assert asyncio.run(counts())["corpus added"] == added


def test_a_full_disk_is_one_for_all_processes_of_a_session(tmp_path):
    write = (
        "import sys; file = open(sys.argv[1], 'wb', 0); print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    try: print(file.write(bytes(4096)), flush=True)\n"
        "    except OSError as error: print(error.strerror, flush=True)\n"
    )
    command = [sys.executable, "-c", write, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, start_new_session=True) as writer:
        assert writer.stdin and writer.stdout  # noqa: PT018

        def line(given: str = "") -> str:
            writer.stdin.write(given)
            writer.stdin.flush()
            return writer.stdout.readline().strip()

        assert line() == "ready"
        with files_limited(writer.pid, 0):
            assert line("a\n") == "File too large"
        assert line("b\n") == "4096"
        writer.stdin.close()
