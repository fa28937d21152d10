"""One engine per configuration and session.  An engine starts when a test first calls it; see `Engine.call`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engines.vllm.engines import Engine, Pool
from tests.engines.vllm.launch import configuration
from tests.engines.vllm.server import SERVED, Server

NGRAM = {"proposer": "ngram", "policy": "fixed"}

# Tests run in this order of what they use, so that each engine starts once; among equals in the order of their files.
ORDER = ("stock_v1", "v1", "stock_v2", "v2", "v2_async", "engine", "serve", "v1_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring together the tests of one engine."""

    def last_of(item: pytest.Item) -> int:
        return max((ORDER.index(name) for name in getattr(item, "fixturenames", ()) if name in ORDER), default=-1)

    items.sort(key=last_of)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("engines"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def stock_v1(pool: Pool) -> Engine:
    """No speculation and no specplug: the truth that V1 is held against."""
    return pool.tenant(Engine, "stock_v1", configuration("v1", installed=False))


@pytest.fixture(scope="session")
def v1(pool: Pool) -> Engine:
    """specplug's ngram on V1."""
    return pool.tenant(Engine, "v1", configuration("v1", NGRAM))


@pytest.fixture(scope="session")
def stock_v2(pool: Pool) -> Engine:
    """No speculation and no specplug: the truth that V2 is held against."""
    return pool.tenant(Engine, "stock_v2", configuration("v2", installed=False))


@pytest.fixture(scope="session")
def v2(pool: Pool) -> Engine:
    """specplug's ngram on V2, scheduled synchronously."""
    return pool.tenant(Engine, "v2", configuration("v2", NGRAM))


@pytest.fixture(scope="session")
def v2_async(pool: Pool) -> Engine:
    """specplug's ngram on V2 with async scheduling."""
    return pool.tenant(Engine, "v2_async", configuration("v2", NGRAM, asynchronous=True))


@pytest.fixture(scope="session")
def engine(pool: Pool) -> Callable[..., Engine]:
    """Make an engine of another configuration: ``engine("v2", {"proposer": "bigram"}, width=4, max_num_seqs=2)``."""

    def make(*args: Any, name: str = "special", **kwargs: Any) -> Engine:
        return pool.tenant(Engine, name, configuration(*args, **kwargs))

    return make


@pytest.fixture(scope="session")
def serve(pool: Pool) -> Callable[..., Server]:
    """Make a `vllm serve`, with arguments as `engine` takes them; its scheduler and worker have a process apart."""

    def make(*args: Any, name: str = "server", **kwargs: Any) -> Server:
        return pool.tenant(Server, name, configuration(*args, **{"in_process": False, **SERVED, **kwargs}))

    return make


@pytest.fixture(scope="session")
def v1_server(serve: Callable[..., Server]) -> Server:
    """specplug's ngram on V1 behind HTTP, with specplug's own routes."""
    return serve("v1", NGRAM, name="v1_server", endpoints=True)
