"""Test only: what vLLM's offloading connector keeps blocks of the key-value cache in, on a CPU.

vLLM's own worker copies with CUDA's streams and refuses CPUs.  The scheduler's half is vLLM's own.  Copies to the cache
happen some steps after they were requested, as those of a GPU may.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

LATE = 2
"""How many steps a copy to the cache takes."""


class HostMemory(CPUOffloadingSpec):
    """Keeps blocks in tensors of their own."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return _Worker(kv_caches)


class _Worker(OffloadingWorker):
    def __init__(self, kv_caches: CanonicalKVCaches) -> None:
        self._caches = [cache.tensor for cache in kv_caches.tensors]
        self._kept: dict[int, list[Tensor]] = {}
        self._stored: list[int] = []
        self._loading: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for block, place in _pairs(src_spec, dst_spec):
            self._kept[place] = [cache[block].clone() for cache in self._caches]
        self._stored.append(job_id)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._loading[job_id] = (LATE, [*_pairs(src_spec, dst_spec)])
        return True

    def get_finished(self) -> list[TransferResult]:
        finished = self._stored
        self._stored = []
        for job_id, (steps, pairs) in list(self._loading.items()):
            if steps:
                self._loading[job_id] = (steps - 1, pairs)
            else:
                self._load(job_id)
                finished.append(job_id)
        return [TransferResult(job_id, success=True) for job_id in finished]

    def wait(self, job_ids: set[int]) -> None:
        """Stores are done when they are submitted; vLLM waits for no others."""

    def _load(self, job_id: int) -> None:
        for place, block in self._loading.pop(job_id)[1]:
            for cache, kept in zip(self._caches, self._kept[place], strict=True):
                cache[block] = kept


def _pairs(source: Any, target: Any) -> Iterable[tuple[int, int]]:
    return zip(source.block_ids.tolist(), target.block_ids.tolist(), strict=True)
