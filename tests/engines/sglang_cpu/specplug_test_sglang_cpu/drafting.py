"""Attention of SGLang's own draft models in chains, which its backend in plain torch lacks.

As on GPUs, each step of a draft has a backend of its own, and all are made for one number of steps.
"""

from __future__ import annotations

from typing import Any

GATHER = "sglang.srt.managers.overlap_utils.gather_spec_extras"
FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"


class DraftSteps:
    """The backends of all steps of a draft but the last, which reads only what the step before it computed.

    Args:
        model_runner: of the draft model.
        topk: 1.
        num_steps: tokens of a draft.
    """

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        if topk != 1:
            raise NotImplementedError("the tests draft with models in chains only")
        self.attn_backends = [_backend(model_runner, num_drafted=step + 1) for step in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def create_decode(self: Any) -> tuple[str, Any]:
    """Stand for a method of the factory that makes the backend of drafts."""
    return "torch_native", DraftSteps(self.draft_model_runner, self.topk, self.speculative_num_steps)


def create_extend(self: Any) -> tuple[str, Any]:
    """Stand for a method of the factory that makes the backend with which a draft model takes in verified tokens."""
    return "torch_native", _backend(self.draft_model_runner, num_drafted=0)


def create(original: Any, self: Any, backend_name: str, backend_map: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Stand around the factory's `_create_backend`."""
    steps = kwargs.get("stamps_children", False)
    ours = {"torch_native": lambda: create_decode(self) if steps else create_extend(self)}
    return original(self, backend_name, {**backend_map, **ours}, *args, **kwargs)


def _backend(model_runner: Any, *, num_drafted: int) -> Any:
    """Return a backend in plain torch whose decoding sees `num_drafted` drafted tokens after each text."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class Backend(TorchNativeAttnBackend):
        def _run_sdpa_forward_decode(self, *args: Any, **kwargs: Any) -> Any:
            *before, req_pool_indices, seq_lens = args[:7]
            return super()._run_sdpa_forward_decode(
                *before, req_pool_indices, seq_lens + num_drafted, *args[7:], **kwargs
            )

    return Backend(model_runner)


def gather(indices: Any, *buffers: Any) -> tuple[Any, ...]:
    """Stand for SGLang's `gather_spec_extras`: the rows of all buffers at the indices, None for no buffer."""
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)
