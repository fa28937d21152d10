"""One engine per configuration and session.  An engine starts when a test first calls it; see `Engine.call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Adapter, Engine, Pool
from tests.engines.plain import Answers, greedy, prompts
from tests.engines.suites.served import Served
from tests.engines.vllm.launch import RUNNERS, SERVED, ZOO, configuration

NGRAM = {"proposer": "ngram", "policy": "fixed"}

FAMILIES = tuple(RUNNERS)

# What `make test` leaves to `make test-all`, because V2 in Triton's interpreter takes its time: what is of vLLM or of
# the tests themselves, what some files try again with async scheduling on, and what others try again with it off.
SLOW = ("test_baseline",)
SLOW_ON_ASYNC = (
    *("test_kv_transfer", "test_sampling", "test_traps"),
    # of the suites, what is V1's as well
    *("test_requests_of_one_group_draft_from_each_other", "test_the_only_proposer_raises"),
    "test_a_grammars_text_is_that_without_drafts",
    # rows of `test_fields` as well
    "test_stop_ids_count_from_the_minimum_on",
)
SLOW_ON_SYNC = (
    "test_a_seeds_text_is_that_without_speculation",
    *("test_greedy", "test_same_drafts", "test_draft_lengths", "test_extended", "test_extended_sampling"),
    *("test_crosstok", "test_rows", "test_timed_steps"),
    # with async scheduling neither: V1 has them
    *("test_kv_transfer", "test_lora"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring together the tests of one model runner, so that engines start once if they can; servers come last."""

    def family(item: pytest.Item) -> int:
        used = set(getattr(item, "fixturenames", ()))
        if "pool" not in used:
            return -1
        if "serve" in used:
            return len(FAMILIES) + 1
        given = item.callspec.params if hasattr(item, "callspec") else {}
        stated = [name for name in (given.get("kind"), given.get("runner")) if name in FAMILIES]
        return FAMILIES.index(stated[0]) if stated else 0

    items.sort(key=family)
    for item in items:
        names = {item.path.stem, item.name.partition("[")[0]}
        again = {"v2": SLOW_ON_SYNC, "v2_async": SLOW_ON_ASYNC}
        if names & {*SLOW} or any(names & {*again[of]} and family(item) == FAMILIES.index(of) for of in again):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def pool(pool: Pool, request: pytest.FixtureRequest) -> Pool:
    """The engines of the session; what forks those of V2 imports vLLM while the tests of V1 run."""
    for runner in {marker for item in request.session.items for marker in ("v1", "v2") if marker in item.name}:
        pool.nursery(configuration(runner))
    return pool


@pytest.fixture(scope="session")
def adapter() -> Adapter:
    """A server's scheduler and worker have a process each, as on a CPU by default; with `in_process` they share one."""
    return Adapter(Engine, configuration, {"in_process": False, **SERVED})


@pytest.fixture(scope="session", params=RUNNERS)
def kind(request: pytest.FixtureRequest) -> str:
    """The runner and its scheduling.  Tests of one kind run together, so that engines start once."""
    return str(request.param)


@pytest.fixture(scope="session")
def start(kind: str, engine: Callable[..., Engine]) -> Callable[..., Served]:
    """Make an engine for a suite; see `tests.engines.suites.served`."""

    def started(settings: dict[str, Any] | None, *, name: str, **how: Any) -> Served:
        if settings is None:
            return Served(engine(RUNNERS[kind]["runner"], installed=False, name=f"{name} {kind}", **how))
        return Served(engine(**RUNNERS[kind], specplug=settings, name=f"{name} {kind}", **how))

    return started


@pytest.fixture(scope="session")
def baseline(kind: str, engine: Callable[..., Engine]) -> Engine:
    """The same runner without speculation."""
    runner = RUNNERS[kind]["runner"]
    return engine(runner, name=f"baseline {runner}", installed=False)


@pytest.fixture(scope="session")
def zoo(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests name their proposers."""
    return engine(**RUNNERS[kind], specplug=ZOO, name=f"zoo {kind}")


@pytest.fixture(scope="session")
def truth() -> Answers:
    """The plain model's greedy answers to `prompts`, at most `MAX_TOKENS` long."""
    return [greedy(prompt) for prompt in prompts()]
