"""Requests, operators and status where SGLang's own draft models draft under specplug's plans."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Raised
from tests.engines.launch import TINY
from tests.engines.plain import assert_greedy, greedy
from tests.engines.server import Server
from tests.engines.sglang import watching
from tests.engines.sglang.drafters import CHANGING, LENGTH, ROWS, answers, arguments, counts, drafted, set_mode, status
from tests.engines.sglang.engines import Engine
from tests.engines.suites.operations import ACCEPTED, ask, complete, scraped, value


@pytest.fixture(scope="session")
def standalone(engine: Callable[..., Engine]) -> Engine:
    return drafted(engine, "STANDALONE", TINY, CHANGING)


@pytest.fixture
def operated(standalone: Engine) -> Iterator[Engine]:
    yield standalone
    standalone.call(set_mode, mode="on", num_speculative_tokens=None)


def answered(engine: Engine) -> tuple[dict[str, Any], list[int]]:
    """Let an engine answer; return the counts of what clients saw, and the lengths of drafts that were verified."""
    before = counts(engine)
    found = answers(engine)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    engine.call(watching.settled)
    after = counts(engine)
    emitted = sum(after[name]["emitted"] - before.get(name, {"emitted": 0})["emitted"] for name in after)
    assert emitted == sum(len(answer["token_ids"]) for answer in found), "none beyond the ends"
    columns = zip(after["standalone"]["verified_at"], before["standalone"]["verified_at"], strict=True)
    return after, [later - earlier for later, earlier in columns]


def test_an_operator_switches_off_and_limits(operated):
    operated.call(set_mode, mode="off")
    before = counts(operated)
    after, verified = answered(operated)
    assert after["standalone"] == before["standalone"]
    assert verified == [0] * LENGTH
    operated.call(set_mode, mode="on", num_speculative_tokens=1)
    _, verified = answered(operated)
    assert verified[0] > 0
    assert verified[1:] == [0] * (LENGTH - 1)
    operated.call(set_mode, mode="on", num_speculative_tokens=None)
    assert min(answered(operated)[1]) > 0


def test_the_status_names_the_drafter_and_its_lengths(standalone):
    found = standalone.call(status)
    assert found["captured_draft_lengths"] == [0, 1, 2, 4]
    assert found["scheduler"]["engine_drafter"] == "standalone"
    assert found["settings"]["proposer"] == {"value": "engine", "origin": "SPECPLUG_CONFIG"}
    assert found["workers"] == []
    assert "engine, policy ladder, up to 4 draft tokens, SGLang's STANDALONE, chains, overlap" in standalone.log()
    assert "Switch adaptive runtime state" not in standalone.log()


def most_tokens(scheduler: Any) -> list[int | None]:
    """Return the draft tokens of the newest step and of the longest one, for which the cache has room, root counted."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    return [get_spec().speculative_num_draft_tokens, max_speculative_num_draft_tokens()]


def test_room_is_kept_for_the_longest_draft(operated):
    operated.call(set_mode, mode="off")
    answers(operated)
    assert operated.inside(most_tokens) == [1, LENGTH + 1]


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its last layer, as a draft model that is often right."""
    from transformers import AutoModelForCausalLM

    path = tmp_path_factory.mktemp("models") / "shallow"
    model = AutoModelForCausalLM.from_pretrained(TINY)
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, path)
    return path


@pytest.fixture(scope="session")
def with_batch(engine: Callable[..., Engine], shallow: Path) -> Engine:
    """The default policy."""
    return drafted(engine, "STANDALONE", shallow, {"proposer": "engine"})


def test_the_default_policy_plans_a_smaller_draft_model(with_batch):
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(with_batch))
    assert with_batch.call(status)["settings"]["policy"] == {"value": "adaptive+batch", "origin": "default"}
    found = counts(with_batch)["standalone"]
    assert 0 < found["accepted"] < found["verified"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"specplug_references": "def area(r)"}, "reads no texts of requests; found references"),
        ({"specplug_documents": ["a"]}, "reads no texts of requests; found documents"),
        ({"specplug_proposer": "ngram"}, "'proposer': this server has not loaded the proposer"),
        ({"specplug_verifier": "reference"}, "'verifier'"),
    ],
)
def test_fields_that_the_drafter_cannot_follow_are_refused(standalone, fields, reason):
    with pytest.raises(Raised, match=reason) as raised:
        answers(standalone, {"custom_params": fields}, ROWS[:1])
    assert raised.value.type == "RefusedRequest"


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server], shallow: Path) -> Server:
    return serve("STANDALONE", **arguments(shallow, {"proposer": "engine"}), enable_metrics=True, name="own server")


@pytest.mark.slow
def test_a_server_shows_status_and_metrics_and_takes_orders(server):
    text = complete(server, max_tokens=64)["choices"][0]["text"]
    (engine,) = ask(server, "/specplug/status").json["engines"]
    found = engine["scheduler"]["metrics"]["by_source"]["standalone"]
    assert 0 < found["accepted"] <= found["verified"]
    assert value(scraped(server), ACCEPTED, engine="0", source="standalone") == found["accepted"]
    assert ask(server, "/specplug/mode", {"mode": "off"}).code == 200
    assert complete(server, max_tokens=64)["choices"][0]["text"] == text
    (after,) = ask(server, "/specplug/status").json["engines"]
    assert after["scheduler"]["metrics"]["by_source"]["standalone"] == found
    assert (after["scheduler"]["plan"]["draft_length"], after["scheduler"]["control"]["mode"]) == (0, "off")
    body = {"text": "def", "sampling_params": {"custom_params": {"specplug_references": "def area(r)"}}}
    assert ask(server, "/generate", body).code == 400
    assert "Ngram speculative decoding is not enabled" in ask(server, "/list_external_corpora").body
