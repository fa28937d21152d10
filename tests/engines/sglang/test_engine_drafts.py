"""SGLang's own draft models under specplug's plans: a draft model and an EAGLE head, with another length at each step.

The draft model is the target itself, so every draft is accepted unless the draft model's cache misses a token.  The
head's drafts are compared, context by context, with those of SGLang alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.equality import judge_greedy
from tests.engines import toy
from tests.engines.eagle import write_head
from tests.engines.engines import Raised
from tests.engines.launch import TINY
from tests.engines.plain import assert_greedy, forward, greedy, ids, model, prompts
from tests.engines.server import Server
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.continuations import continuations
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome
from tests.engines.suites.operations import ACCEPTED, ask, complete, scraped, value

LENGTH = 4
ROWS = [prompts()[row] for row in (0, 3, 5, 8, 13, 18, 21, 23)]
CHANGING = {"proposer": "engine", "policy": "ladder", "options": {"ladder": {"draft_lengths": [4, 0, 2, 0, 1, 4, 1]}}}


@pytest.fixture(scope="session")
def drafted(engine: Callable[..., Engine]) -> Callable[..., Engine]:
    """Make an engine with a drafter of SGLang's own, and settings of specplug's or none."""

    def make(algorithm: str, draft: Path, settings: dict[str, Any] | None = None, **arguments: Any) -> Engine:
        return engine(
            algorithm,
            draft_length=LENGTH,
            speculative_num_steps=LENGTH,
            speculative_draft_model_path=str(draft),
            environment={"SPECPLUG_CONFIG": json.dumps(settings or {})},
            name=f"{algorithm} {'planned' if settings else 'alone'}",
            **arguments,
        )

    return make


@pytest.fixture(scope="session")
def itself() -> Path:
    return TINY


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("models") / "eagle", "LlamaForCausalLMEagle")


@pytest.fixture(scope="session")
def third_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("models") / "eagle3", "LlamaForCausalLMEagle3")


@pytest.fixture(scope="session")
def standalone(drafted: Callable[..., Engine], itself: Path) -> Engine:
    return drafted("STANDALONE", itself, CHANGING)


@pytest.fixture(scope="session")
def planned_eagle3(drafted: Callable[..., Engine], third_head: Path) -> Engine:
    return drafted("EAGLE3", third_head, CHANGING)


@pytest.fixture
def operated(standalone: Engine) -> Iterator[Engine]:
    yield standalone
    standalone.call(set_mode, mode="on", num_speculative_tokens=None)


@pytest.fixture(scope="session")
def planned_eagle(drafted: Callable[..., Engine], head: Path) -> Engine:
    return drafted("EAGLE", head, CHANGING)


def answers(engine: Engine, params: Any = None, rows: list[tuple[int, ...]] = ROWS, **options: Any) -> list[Any]:
    found: list[Any] = engine.call(inside.generate, prompts=[list(row) for row in rows], params=params, **options)
    return found


# -- functions that run in the engine or its scheduler ----------------------------------------------------------------


def scheduler_status(engine: Any) -> dict[str, Any]:
    from specplug_sglang import status

    (found,) = status.read(engine)
    return dict(found)


def set_mode(engine: Any, **order: Any) -> Any:
    from specplug_sglang import status

    return status.set_mode(engine, **order)


DRAFTS: list[list[Any]] = []


def record_drafts(scheduler: Any) -> None:
    """Record, of each row that is verified, its request, the length of its text, and its draft."""
    worker = scheduler.draft_worker
    verify = worker.verify

    def recorded(batch: Any, *args: Any, **kwargs: Any) -> Any:
        rows = batch.spec_info.draft_token.view(len(batch.reqs), -1).tolist()
        for req, length, draft in zip(batch.reqs, batch.seq_lens.tolist(), rows, strict=True):
            DRAFTS.append([req.rid, length, draft[1:]])
        return verify(batch, *args, **kwargs)

    DRAFTS.clear()
    trees.put(worker, "verify", recorded)


def recorded_drafts(scheduler: Any) -> list[list[Any]]:
    trees.restore(scheduler)
    return DRAFTS


def miss_steps_without_drafts(scheduler: Any) -> None:
    """The mistake: the draft model does not see the tokens of steps without drafts."""
    from sglang.srt.environ import envs

    envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(True)


def see_all_steps(scheduler: Any) -> None:
    from sglang.srt.environ import envs

    envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.clear()


# -- draft lengths that change at every step --------------------------------------------------------------------------


def counts(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.call(scheduler_status)["scheduler"]["metrics"]["by_source"]
    return found


def change(after: dict[str, Any], before: dict[str, Any], name: str) -> Any:
    if isinstance(after[name], list):
        return [new - old for new, old in zip(after[name], before[name], strict=True)]
    return after[name] - before[name]


@pytest.mark.parametrize(
    "planned", ["standalone", "planned_eagle", pytest.param("planned_eagle3", marks=pytest.mark.slow)]
)
def test_greedy_text_is_the_targets(planned, request):
    engine = request.getfixturevalue(planned)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))


def drafts_by_context(engine: Engine) -> dict[tuple[str, int], list[int]]:
    """Run all requests; return the draft that was verified after each text, by request and the text's length."""
    engine.inside(record_drafts)
    answers(engine, rid=[str(row) for row in range(len(ROWS))])
    return {(rid, length): draft for rid, length, draft in engine.inside(recorded_drafts)}


def in_both(expected: dict[Any, list[int]], actual: dict[Any, list[int]]) -> list[tuple[list[int], list[int]]]:
    """Return what was drafted after the same texts, with changing and with constant lengths."""
    assert {len(draft) for draft in expected.values()} == {LENGTH}
    assert {len(draft) for draft in actual.values()} == {0, 1, 2, LENGTH}
    found = [(actual[context], expected[context]) for context in actual.keys() & expected.keys() if actual[context]]
    assert len(found) > 30
    return found


DRAFTERS = {
    "STANDALONE": ("itself", "standalone"),
    "EAGLE": ("head", "planned_eagle"),
    "EAGLE3": ("third_head", "planned_eagle3"),
}


@pytest.fixture(scope="session", params=["STANDALONE", "EAGLE", pytest.param("EAGLE3", marks=pytest.mark.slow)])
def constant(request: pytest.FixtureRequest, drafted: Callable[..., Engine]) -> Any:
    """What SGLang drafts without specplug, by context, and the engine whose lengths change."""
    draft, planned = map(request.getfixturevalue, DRAFTERS[request.param])
    return drafts_by_context(drafted(request.param, draft)), planned


def test_drafts_are_as_if_lengths_never_changed(constant):
    expected, engine = constant
    assert all(draft == whole[: len(draft)] for draft, whole in in_both(expected, drafts_by_context(engine)))


def test_a_draft_model_that_misses_steps_without_drafts_is_noticed(constant):
    expected, engine = constant
    engine.inside(miss_steps_without_drafts)
    try:
        found = in_both(expected, drafts_by_context(engine))
    finally:
        engine.inside(see_all_steps)
    assert sum(draft != whole[: len(draft)] for draft, whole in found) > len(found) // 4


def judge_long_answers(engine: Engine) -> list[Any]:
    given = [prompts()[row] for row in (3, 8, 13, 18, 21, 23)]
    found = answers(engine, {"max_new_tokens": 120, "ignore_eos": True}, given)
    expected = continuations(model(), [list(row) for row in given], 120)
    judge_greedy(forward, given, expected, [answer["token_ids"] for answer in found]).assert_ok()
    return found


def test_requests_that_are_retracted_are_drafted_for_again(planned_eagle):
    planned_eagle.inside(watching.retract_often, every=5)
    try:
        found = judge_long_answers(planned_eagle)
    finally:
        planned_eagle.inside(watching.retract_often, every=0)
    assert sum(answer["meta"]["num_retractions"] for answer in found) > 3


@pytest.mark.slow
def test_steps_that_do_not_overlap_and_prompts_in_chunks(drafted, head):
    judge_long_answers(drafted("EAGLE", head, CHANGING, overlap=False, chunked_prefill_size=64))


def most_tokens(scheduler: Any) -> list[int | None]:
    """Return the draft tokens of the newest step and of the longest one, for which the cache has room, root counted."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    return [get_spec().speculative_num_draft_tokens, max_speculative_num_draft_tokens()]


def test_room_is_kept_for_the_longest_draft(operated):
    operated.call(set_mode, mode="off")
    answers(operated)
    assert operated.inside(most_tokens) == [1, LENGTH + 1]


# -- requests of their own kind ---------------------------------------------------------------------------------------


def test_requests_limits_are_kept_in_one_batch(standalone):
    """All rows have one length; of a limited row's draft no more than its limit is accepted."""
    fields = [{}, {"specplug_num_speculative_tokens": 1}, {"specplug_enabled": False}]
    params = [{"custom_params": dict(fields[row % 3])} for row in range(9)]
    given = [ROWS[row // 3] for row in range(9)]
    found = answers(standalone, params, given)
    assert_greedy(given, [greedy(row) for row in given], found)
    emitted = [answer["meta"]["completion_tokens"] - 1 for answer in found]  # the first token is the prefill's
    a_step = [tokens / answer["meta"]["spec_verify_ct"] for tokens, answer in zip(emitted, found, strict=True)]
    assert max(a_step[0::3]) > 2
    assert all(1 < tokens <= 2 for tokens in a_step[1::3])
    assert a_step[2::3] == [1, 1, 1]


def test_penalties_are_exact(standalone, drafted, baseline):
    """SGLang alone counts a step as one token for them, however many it accepted."""
    params = [{"frequency_penalty": 0.5}, {"presence_penalty": 0.9}, {"min_new_tokens": 40}, {}] * 2
    given = [tuple(ids(text)) for text in ("The capital of France is", "def f(x):")] * 4
    engines = standalone, drafted("STANDALONE", TINY), baseline
    found, alone, expected = ([answer["token_ids"] for answer in answers(engine, params, given)] for engine in engines)
    assert found == expected
    assert alone != expected


def test_a_grammar_is_followed(planned_eagle, baseline):
    params = {"regex": "[a-f]{3}( [a-f]{3}){4}", "max_new_tokens": 40}
    found, expected = (answers(engine, params, ROWS[:4]) for engine in (planned_eagle, baseline))
    assert [answer["token_ids"] for answer in found] == [answer["token_ids"] for answer in expected]


# -- operators --------------------------------------------------------------------------------------------------------


def test_an_operator_switches_off_and_limits(operated):
    operated.call(set_mode, mode="off")
    before = counts(operated)
    found = answers(operated)
    after = counts(operated)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    assert after["standalone"] == before["standalone"]
    assert change(after["none"], before["none"], "emitted") == sum(len(answer["token_ids"]) for answer in found)
    operated.call(set_mode, mode="on", num_speculative_tokens=1)
    answers(operated)
    verified = change(counts(operated)["standalone"], after["standalone"], "verified_at")
    assert verified[0] > 0 == sum(verified[1:])


def test_the_status_names_the_drafter_and_its_lengths(planned_eagle):
    found = planned_eagle.call(scheduler_status)
    assert found["captured_draft_lengths"] == [0, 1, 2, 4]
    assert found["scheduler"]["engine_drafter"] == "eagle"
    assert found["settings"]["proposer"] == {"value": "engine", "origin": "SPECPLUG_CONFIG"}
    assert found["workers"] == []
    assert "engine, policy ladder, up to 4 draft tokens, SGLang's EAGLE, chains, overlap" in planned_eagle.log()
    assert "Switch adaptive runtime state" not in planned_eagle.log()


# -- a server with a smaller draft model ------------------------------------------------------------------------------


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
def batched(shallow: Path) -> dict[str, Any]:
    """The arguments of an engine or a server with a draft model that is often right, and the default policy."""
    return {
        "draft_length": LENGTH,
        "speculative_num_steps": LENGTH,
        "speculative_draft_model_path": str(shallow),
        "environment": {"SPECPLUG_CONFIG": json.dumps({"proposer": "engine"})},
    }


@pytest.fixture(scope="session")
def with_batch(engine: Callable[..., Engine], batched: dict[str, Any]) -> Engine:
    return engine("STANDALONE", **batched, name="STANDALONE batch")


def test_the_default_policy_plans_a_smaller_draft_model(with_batch):
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(with_batch))
    assert with_batch.call(scheduler_status)["settings"]["policy"] == {"value": "batch", "origin": "default"}
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
def test_fields_that_the_drafter_cannot_follow_are_refused(with_batch, fields, reason):
    with pytest.raises(Raised, match=reason) as raised:
        answers(with_batch, {"custom_params": fields}, ROWS[:1])
    assert raised.value.type == "RefusedRequest"


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server], batched: dict[str, Any]) -> Server:
    return serve("STANDALONE", **batched, enable_metrics=True, name="STANDALONE server")


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


# -- sampling ---------------------------------------------------------------------------------------------------------


def test_sampled_text_has_the_targets_distribution(engine, tmp_path_factory):
    """With lengths that change at every step, and limits in some rows; the model drafts for itself."""
    path = tmp_path_factory.mktemp("toy")
    toy.model().save_pretrained(path)
    sampled = engine(
        "STANDALONE",
        draft_length=LENGTH,
        speculative_num_steps=LENGTH,
        speculative_draft_model_path=str(path),
        model_path=str(path),
        skip_tokenizer_init=True,
        context_length=64,
        max_running_requests=64,
        sampling=True,
        environment={"SPECPLUG_CONFIG": json.dumps(CHANGING)},
        name="STANDALONE toy",
    )
    plain = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [{**plain, "custom_params": {"specplug_num_speculative_tokens": 1 + row % 4}} for row in range(128)]
    found = answers(sampled, params, [toy.PROMPT] * len(params))
    assert toy.p_value([answer["token_ids"] for answer in found]) > 1e-4
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found) > 200


# -- what ends the start ----------------------------------------------------------------------------------------------

PLANNED = json.dumps({"proposer": "engine"})


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, ["chains only", "eagle-topk 4"]),
        ({"enable_lora": True, "lora_paths": ["a=/a"], "max_lora_rank": 8}, ["adapters", "--enable-lora True"]),
        ({"speculative_adaptive": True}, ["specplug's policy", "--speculative-adaptive True"]),
        ({"speculative_accept_threshold_single": 0.5}, ["lossy acceptance"]),
        ({"speculative_algorithm": "NGRAM"}, ["cannot be planned", "--speculative-algorithm NGRAM", "STANDALONE"]),
        ({"plant": "a_drafter_that_skips"}, ["steps without drafts", "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1"]),
        ({"plant": "drafts_that_moved"}, ["SGLang has moved", "Req.fly is gone"]),
        ({"settings": '{"proposer": "engine", "verifier": "trtri"}'}, ["verifier"]),
    ],
)
def test_what_is_not_supported_is_refused(arguments, parts, baseline):
    given = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1, **arguments}
    planted = {name: given.pop(name) for name in ("plant", "settings") if name in given}
    found = baseline.call(outcome, arguments={**SMALL, **given}, **{"settings": PLANNED, **planted})
    assert found.startswith("ValueError: "), found
    assert all(part in found for part in parts), found


def test_other_settings_leave_sglangs_drafters_alone(baseline):
    given = {**SMALL, "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 4}
    given |= {"speculative_num_draft_tokens": 8}
    for settings in (None, '{"proposer": "ngram"}'):
        assert baseline.call(outcome, arguments=given, settings=settings) == "started"


def test_specplugs_own_algorithm_has_no_drafter_of_sglangs(baseline):
    found = baseline.call(outcome, arguments=SMALL, settings=PLANNED)
    assert "the engine's own drafter is not used here" in found
