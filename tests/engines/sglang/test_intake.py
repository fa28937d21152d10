"""specplug's request fields are checked before the scheduler receives the request.

What they do there is tested with what they ask for, and what comes over HTTP in `test_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.engines import Engine, Raised
from tests.engines.sglang import inside
from tests.engines.sglang.launch import FEATURES
from tests.engines.sglang.test_fields import DRAFTED

TEXT = "def area(r):\n    return 3.14159 * r * r\n"
OTHER = {"other": 1, "list": ["a", 2.5, None, True], "map": {"a": "b"}}


@pytest.fixture
def zoo(engine: Callable[..., Engine]) -> Engine:
    """The overlapped engine of `test_fields`."""
    return engine("SPECPLUG", settings={**DRAFTED, "faults": {"host_deadline_ms": None}}, name="fields", **FEATURES)


# Inside the scheduler.


def listen(scheduler: Any) -> None:
    """Note what arrives from now on."""
    from specplug.requests import wire

    scheduler._arrivals = []
    original = type(scheduler)._add_request_to_queue

    def add(req: Any, *args: Any, **kwargs: Any) -> Any:
        carried = req.sampling_params.custom_params
        _, references, tenant = wire.decode(carried)
        scheduler._arrivals.append(
            {
                "references": {reference.name: reference.token_ids.tolist() for reference in references},
                "tenant": tenant,
                "rest": {key: value for key, value in (carried or {}).items() if key != "specplug"},
            }
        )
        return original(scheduler, req, *args, **kwargs)

    scheduler._add_request_to_queue = add


def received(scheduler: Any) -> list[dict[str, Any]]:
    """Return what has arrived since `listen`, and listen no more."""
    del scheduler._add_request_to_queue
    return scheduler._arrivals


# Inside the engine's process.


def refusals(engine: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how a request is refused, plain and streamed, and what remains of it."""
    found = []
    for stream in (False, True):
        try:
            answers = engine.generate(input_ids=[5, 6, 7], sampling_params={"custom_params": given}, stream=stream)
            list(answers if stream else ())
        except Exception as error:
            left = len(engine.tokenizer_manager.rid_to_state)
            found.append({"text": str(error), "value error": isinstance(error, ValueError), "left": left})
        else:
            found.append({"text": "it was served"})
    return found


def parses(engine: Any, sampling_params: Any, prompts: int) -> tuple[int, int, bool]:
    """Return how often a call parses fields, how many answers it has, and whether its parameters are unchanged."""
    from specplug_sglang.frontend.parsing import PackingParser

    count = []
    before = repr(sampling_params)

    def parsed(self: Any, extra_args: Any) -> Any:
        count.append(1)
        return original(self, extra_args)

    original = PackingParser.parse_fields
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackingParser, "parse_fields", parsed)
        given = [[5, 6, 7]] * prompts if prompts > 1 else [5, 6, 7]
        answers = engine.generate(input_ids=given, sampling_params=sampling_params)
    return len(count), len(answers) if isinstance(answers, list) else 1, repr(sampling_params) == before


# Tests.


@contextlib.contextmanager
def listening(engine: Engine) -> Iterator[list[dict[str, Any]]]:
    """Yield a list that holds, once the context is closed, what arrived in the scheduler meanwhile."""
    found: list[dict[str, Any]] = []
    engine.inside(listen)
    try:
        yield found
    finally:
        found += engine.inside(received)


def arrival(rest: dict[str, Any] | None = None, tenant: str | None = None, **references: list[int]) -> dict[str, Any]:
    return {"references": references, "tenant": tenant, "rest": rest or {}}


SHORT = {"max_new_tokens": 2}
REFERRING = {**SHORT, "temperature": 1.0, "custom_params": {"specplug_references": [5, 6]}}
REFERRED = arrival(**{"reference 1": [5, 6]})
EACH = [{**SHORT, "custom_params": own} for own in ({"specplug_tenant": "a"}, None, {"specplug_tenant": "b", **OTHER})]


@pytest.mark.parametrize(
    ("params", "prompts", "answer", "arrived"),
    [
        *(({**SHORT, "custom_params": own}, 1, (0, 1), [arrival(own)]) for own in (None, {}, OTHER)),
        (REFERRING, 1, (1, 1), [REFERRED]),
        # For parallel samples SGLang sends one request more for each prompt, which fills its prefix cache.
        ({**REFERRING, "n": 3}, 2, (1, 6), [REFERRED] * 8),
        (EACH, 3, (2, 3), [arrival(tenant="a"), arrival(), arrival(OTHER, "b")]),
    ],
)
def test_fields_are_parsed_once_however_many_requests_they_stand_for(zoo, params, prompts, answer, arrived):
    """Requests without fields are left alone, and each request of a list has its own."""
    with listening(zoo) as found:
        assert zoo.call(parses, sampling_params=params, prompts=prompts) == [*answer, True]
    assert found == arrived


@pytest.mark.parametrize(
    ("custom", "fragments"),
    [
        ({"specplug_refrences": TEXT}, ["'specplug_refrences'", "Did you mean 'specplug_references'?"]),
        ({"specplug_verifier": "reference"}, ["does not verify with it"]),
        ({"specplug": {"wire": "2", "fields": "{}", "ids": "ffffffff"}}, ["unknown request field"]),  # the wire's form
        ({"specplug_references": "x " * 10_000_000}, ["too large", "limits.max_reference_tokens"]),
    ],
)
def test_mistakes_are_value_errors_and_never_reach_the_scheduler(zoo, custom, fragments):
    with listening(zoo) as found:
        answers = zoo.call(refusals, given=custom)
    for answer in answers:
        assert [fragment for fragment in fragments if fragment not in answer["text"]] == []
        assert answer["value error"]  # SGLang's server answers it with a 400
        assert answer["left"] == 0
    assert found == []


def test_one_bad_request_among_others_spoils_nothing(zoo):
    bad = {"custom_params": {"specplug_tenants": "a"}}
    with listening(zoo) as found, pytest.raises(Raised, match="specplug_tenants"):
        zoo.call(inside.generate, prompts=["a", "b", "c"], params=[{}, bad, {}])
    assert found == []
    (answer,) = zoo.call(inside.generate, prompts=["a"], params={"max_new_tokens": 4})
    assert len(answer["token_ids"]) == 4


def test_a_server_without_specplug_has_no_hooks(baseline):
    """The server passes all fields on, specplug's included, and parses none."""
    with listening(baseline) as found:
        baseline.call(
            inside.generate,
            prompts=["a"],
            params={"max_new_tokens": 2, "custom_params": {"specplug_tenants": "a", "specplug": {"enabled": False}}},
        )
    [each] = found
    assert each["tenant"] is None
    assert each["rest"] == {"specplug_tenants": "a"}
    assert baseline.call(patched) == []


def patched(engine: Any) -> list[str]:
    """Return the names that the adapter has wrapped in the engine's process."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    return [name for name in vars(TokenizerManager) if hasattr(getattr(TokenizerManager, name), "_specplug")]


# Without an engine.


def test_requests_without_a_body_keep_their_fields():
    """These are requests of SGLang's gRPC bridge, where OpenAI's `prediction` is lost."""
    from specplug_sglang.frontend import intake

    async def handle_request(self: Any, request: Any, raw_request: Any) -> Any:
        return request.custom_params

    serving = SimpleNamespace(tokenizer_manager=SimpleNamespace(**{intake.PARSER: object()}))
    given = {"specplug_tenant": "a"}
    found = asyncio.run(
        intake._handle_request(handle_request, serving, SimpleNamespace(custom_params=given), SimpleNamespace())
    )
    assert found is given


def test_requests_of_the_grpc_bridge_have_no_client():
    """Their headers are a mapping, where those of an HTTP request have the raw ones."""
    from specplug_sglang.frontend import intake

    assert intake._client(SimpleNamespace(headers={"authorization": "Bearer a"})) is None
