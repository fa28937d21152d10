"""What is compiled for GPUs has processes of its own, which begin with the session; their tests come last."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.engines.gpu_compiler import compiled

LAST = ("test_gpu_kernels", "test_launches")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem in LAST)


@pytest.fixture(scope="session", autouse=True)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """What the processes of the tests that run return, by name."""
    from tests.engines.kernels import test_gpu_kernels, test_launches

    stems = {item.path.stem for item in request.session.items}
    threads = ThreadPoolExecutor(1)
    tasks = {}
    if "test_launches" in stems:
        tasks["vllm"] = partial(test_launches.launched, "--rows", "1", "3")
        tasks["sglang"] = partial(test_launches.launched, "--rows", "3", "--engine", "sglang")
    if "test_gpu_kernels" in stems:
        with test_gpu_kernels.not_interpreted() as launches:  # patches modules: not in a thread
            tasks["sm_80"] = partial(compiled, launches, tmp_path_factory.mktemp("triton"), 80)
    yield {name: threads.submit(task) for name, task in tasks.items()}
    threads.shutdown(cancel_futures=True)
