"""TRL's server, its client and its colocate mode, with specplug turned on by environment variables alone.

`make setup-trl` installs TRL in a folder of its own; without it these tests are skipped.  TRL sends weights to a server
by NCCL, which takes GPUs: here an update begins and ends, and none arrive.  Colocated, they do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

from specplug.testing.equality import judge_greedy
from tests.engines.engines import Pool
from tests.engines.launch import PYTHON, ROOT
from tests.engines.plain import MAX_TOKENS, forward, greedy, model, prompts
from tests.engines.server import Server
from tests.engines.vllm import launch
from tests.engines.vllm.launch import SERVED, configuration

INSTALLED = Path(sys.prefix) / "trl"
FOUND = PathFinder.find_spec("trl", [str(INSTALLED), *sys.path])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None or FOUND.origin is None, reason="TRL is not installed; see `make setup-trl`"),
]
FOLDER = "" if FOUND is None or FOUND.origin is None else str(Path(FOUND.origin).parents[1])

GIVEN = prompts()[:6]
MEMORY = "ngram/response memory"


class Configuration(launch.Configuration):
    """TRL's command; it hands on to `vllm serve` what it does not know itself."""

    def command(self, port: int) -> list[str]:
        serve = [PYTHON, "-m", "trl.scripts.vllm_serve", "--model"]
        return [*serve, *self.flags(), "--host", "127.0.0.1", "--port", str(port)]


def with_trl(**environment: str) -> launch.Configuration:
    """Describe the tests' small engine on V1, which finds TRL, under these variables."""
    stated = configuration("v1", endpoints=True, in_process=True, **SERVED)
    folders = os.pathsep.join([str(stated.environment["PYTHONPATH"]), FOLDER])
    return Configuration(stated.arguments, {**stated.environment, "PYTHONPATH": folders, **environment})


@pytest.fixture(scope="module")
def server(pool: Pool) -> Server:
    return pool.tenant(Server, "trl", with_trl(SPECPLUG_ENABLE="1"))


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(FOLDER)
    from trl.generation.vllm_client import VLLMClient

    opened = VLLMClient(base_url=server.url)
    yield opened
    opened.session.close()


def counted(server: Server, source: str | None = None) -> dict[str, Any]:
    """Return the counts so far, all of them or one source's."""
    (engine,) = json.loads(server.get("/specplug/status"))["engines"]
    metrics = engine["workers"][0]["metrics"]
    return metrics["total"] if source is None else metrics["by_source"][source]


def assert_logprobs(prompt: tuple[int, ...], text: list[int], logprobs: list[list[float]]) -> None:
    """Check the logprobs of a text, which TRL weighs samples by, against the plain model's."""
    with torch.inference_mode():
        logits = model()(input_ids=torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1].float()
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(text)[:, None]).squeeze(-1)
    torch.testing.assert_close(torch.tensor([step[0] for step in logprobs]), expected, atol=2e-3, rtol=0)


def assert_texts(given: tuple[tuple[int, ...], ...], texts: list[list[int]]) -> None:
    """Check greedy texts against the plain model's."""
    judge_greedy(forward, given, [greedy(prompt)["token_ids"] for prompt in given], texts).assert_ok()


def test_greedy_samples_through_trls_client_are_the_models(server, client):
    before = counted(server)
    found = client.generate([list(prompt) for prompt in GIVEN], n=2, temperature=0.0, max_tokens=MAX_TOKENS)
    twice = tuple(prompt for prompt in GIVEN for _ in range(2))
    assert [tuple(prompt) for prompt in found["prompt_ids"]] == list(GIVEN)
    assert_texts(twice, found["completion_ids"])
    for prompt, text, logprobs in zip(twice, found["completion_ids"], found["logprobs"], strict=True):
        assert_logprobs(prompt, text, logprobs)
    assert counted(server)["accepted"] > before["accepted"] + 50
    assert "up to 15 draft tokens, V1, synchronous" in server.log()


def test_sampled_tokens_have_the_models_logprobs(server, client):
    before = counted(server)
    found = client.generate([list(GIVEN[0])], n=8, temperature=1.0, max_tokens=MAX_TOKENS)
    assert len(found["completion_ids"]) == 8
    for text, logprobs in zip(found["completion_ids"], found["logprobs"], strict=True):
        assert_logprobs(GIVEN[0], text, logprobs)
    assert counted(server)["accepted"] > before["accepted"]


def test_an_update_of_weights_clears_the_memory_of_responses(server, client):
    """The second answer to a prompt is drafted from the first, until an update, through TRL's client, has ended."""
    prompt, tested = prompts()[7], []  # one that goes on without copying from itself
    for update in (False, False, True):
        if update:
            with client.weight_update():
                pass
        before = counted(server, MEMORY)["tested"]
        found = client.generate([list(prompt)], n=1, temperature=0.0, max_tokens=MAX_TOKENS)
        assert_texts((prompt,), found["completion_ids"])
        tested.append(counted(server, MEMORY)["tested"] - before)
    assert tested[1] > 20 + max(tested[0], tested[2])


@pytest.fixture(scope="module")
def colocated() -> dict[str, Any]:
    """What `tests.engines.vllm.colocated` prints."""
    stated = with_trl(SPECPLUG_ENABLE="1")
    program = [PYTHON, "-m", "tests.engines.vllm.colocated"]
    ended = subprocess.run(program, cwd=ROOT, env=stated.variables(), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_colocated_texts_are_the_models_before_and_after_an_update(colocated):
    twice = tuple(prompt for prompt in GIVEN for _ in range(2))
    for round_ in ("before", "again"):
        assert_texts(twice, colocated[round_]["texts"])
        for prompt, text, logprobs in zip(
            twice, colocated[round_]["texts"], colocated[round_]["logprobs"], strict=True
        ):
            assert_logprobs(prompt, text, logprobs)
    assert colocated["after"]["texts"] == [text for text in colocated["truth"] for _ in range(2)]
    assert colocated["after"]["texts"] != colocated["before"]["texts"], "the update changes nothing"


def test_colocated_updates_clear_the_memory_of_responses(colocated):
    accepted = [colocated[name]["metrics"]["total"]["accepted"] for name in ("before", "again", "after")]
    assert 0 < accepted[0] < accepted[1] < accepted[2]
    answered = [colocated[name]["metrics"]["by_source"][MEMORY]["tested"] for name in ("before", "again", "after")]
    first, second, third = answered[0], answered[1] - answered[0], answered[2] - answered[1]
    assert second > 2 * max(first, third)
