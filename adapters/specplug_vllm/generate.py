"""The command line's vLLM engine: a model by name or path, text in, text out.

The engine core runs in a separate process, as on a server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specplug.errors import EngineError
from specplug.metrics import MetricsSnapshot
from specplug.operator.launches import differing
from specplug.plugins.engines import TextRequest, TextUpdate
from specplug.settings.model import Settings
from specplug_vllm import seams
from specplug_vllm.config import METHOD, PROPOSER, SECTION

_UNASKED = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # the command line prints its own messages
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, instead of half the machine's memory
}


class VllmEngine:
    """A `specplug.plugins.engines.TextEngine` over `vllm.LLM`.

    Args:
        model: a Hugging Face model id or a folder.
        settings: the server's settings.
        device: must be the device that the installed vLLM is built for; None accepts it.
        dtype: a torch dtype's name; float32 on a CPU and vLLM's own choice elsewhere by default.
        max_num_seqs: most concurrent requests.
        threads: CPU threads; None keeps vLLM's default.
        baseline: run vLLM without speculation, as if specplug were not installed.

    Raises:
        EngineError: vLLM is not installed, is built for another device, or cannot load the model.
    """

    def __init__(
        self,
        model: str,
        settings: Settings,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_num_seqs: int = 8,
        threads: int | None = None,
        baseline: bool = False,
    ) -> None:
        for name, value in {**_UNASKED, **({} if threads is None else {"OMP_NUM_THREADS": str(threads)})}.items():
            os.environ.setdefault(name, value)
        self._platform = _platform(device)
        self._name = model
        self._llm = _started(
            model,
            dtype=dtype or ("float32" if self._platform == "cpu" else "auto"),
            use_tqdm_on_load=False,
            max_num_seqs=max_num_seqs,
            enforce_eager=self._platform == "cpu",  # compilation would take longer than most answers
            disable_log_stats=True,
            **({} if baseline else _speculation(settings)),
        )
        self.metrics = _Counts(self._llm)

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        """Serve the requests in one batch and yield updates; closing the iterator aborts them all."""
        engine = self._llm.llm_engine
        index: dict[str, int] = {}
        try:
            for number, request in enumerate(requests):
                name = f"specplug-{number}"
                engine.add_request(name, _prompt(request.prompt), _translate(request))
                index[name] = number
            while engine.has_unfinished_requests():
                for output in engine.step():
                    completion = output.outputs[0]
                    yield TextUpdate(
                        index=index[output.request_id],
                        text=completion.text,
                        token_ids=list(completion.token_ids),
                        finish_reason=completion.finish_reason,
                        top_logprobs=[
                            {token: found.logprob for token, found in (top or {}).items()}
                            for top in completion.logprobs or ()
                        ],
                    )
        finally:
            engine.abort_request(list(index))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        return list(self._llm.get_tokenizer().encode(text))

    def describe(self) -> str:
        """Return model, dtype, device and engine in one line."""
        import vllm

        dtype = self._llm.llm_engine.vllm_config.model_config.dtype
        return f"{Path(self._name).name}, {dtype}, on {self._platform}, vLLM {vllm.__version__}"

    def close(self) -> None:
        """Shut down the engine core's process."""
        self._llm.llm_engine.engine_core.shutdown()


class _Counts:
    """Counters since the engine was built, fetched from the worker at each `snapshot`."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def snapshot(self) -> MetricsSnapshot:
        """Return the counts of the worker that drafts, without the scheduler's faults."""
        from specplug.operator.exporter import snapshot_of

        (counts,) = (status["metrics"] for status in self._llm.collective_rpc("specplug_status") if status["drafts"])
        return snapshot_of(counts, {})


def _platform(device: str | None) -> str:
    """Return the device that the installed vLLM serves on."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError.build(
            "vLLM is not installed",
            who="specplug_vllm",
            found=str(error),
            remedy="Install it in specplug's environment",
        ) from error
    found = str(current_platform.device_type)
    if device not in (None, found):
        raise EngineError.build(
            "this vLLM is built for another device", who="specplug_vllm", found=repr(device), expected=repr(found)
        )
    return found


def _started(model: str, **arguments: Any) -> Any:
    seams.require("cli")
    from vllm import LLM

    from specplug_vllm.worker.workarounds import answer_for_llvmlite

    answer_for_llvmlite()
    try:
        return LLM(model, **arguments)
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError.build(
            f"vLLM does not start on model {model!r}",
            who="specplug_vllm",
            found=str(error).strip().splitlines()[0],
            remedy="Set VLLM_LOGGING_LEVEL=INFO to see vLLM's log",
        ) from error


def _speculation(settings: Settings) -> dict[str, Any]:
    """Return vLLM's arguments that make it speculate with these settings."""
    draft_length = settings.num_speculative_tokens
    changed = {key: value for key, value in differing(settings).items() if key != "num_speculative_tokens"}
    return {
        "speculative_config": {"method": METHOD, "model": PROPOSER, "num_speculative_tokens": max(1, draft_length)},
        "additional_config": {SECTION: changed if draft_length else {**changed, "mode": "off"}},
    }


def _prompt(prompt: str | Sequence[int]) -> Any:
    """Return a prompt as vLLM takes it."""
    return prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}


def _translate(request: TextRequest) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    schema = request.json_schema

    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        stop=list(request.stop),
        logprobs=request.top_logprobs or None,
        structured_outputs=None if schema is None else StructuredOutputsParams(json=dict(schema)),
        output_kind=RequestOutputKind.DELTA,
        extra_args={SECTION: dict(request.specplug)} if request.specplug else None,
    )
