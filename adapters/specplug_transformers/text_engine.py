"""The command line's embedded engine: a model by name or path, text in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from specplug.draft_model.model import errors_of_libraries
from specplug.errors import EngineError, RequestError
from specplug.metrics import SpecMetrics
from specplug.plugins.embedded import TextRequest, TextUpdate
from specplug.settings.model import Settings
from specplug_transformers.engine import Engine
from specplug_transformers.intake import GenerateRequest
from specplug_transformers.params import SamplingParams
from specplug_transformers.state import RequestOutput


class TransformersEngine:
    """A `specplug.plugins.embedded.TextEngine` over `Engine`.

    Args:
        model: a Hugging Face model id or a folder.
        settings: the server's settings.
        device: "cpu", "cuda", ...; by default a GPU if there is one.
        dtype: a torch dtype's name; float32 on a CPU and bfloat16 on a GPU by default.
        max_num_seqs: maximum number of concurrent requests.
        threads: CPU threads, for the whole process; None keeps torch's default.
        baseline: never speculate; log-probabilities are then those of a plain forward pass of the model.
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
        if threads is not None:
            torch.set_num_threads(threads)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
        self._name = model
        self._baseline = baseline
        self._model, self._tokenizer = load(model, device, dtype)
        if baseline:
            settings = settings.model_copy(update={"mode": "off"})
        self.engine = Engine(self._model, self._tokenizer, settings=settings, max_num_seqs=max_num_seqs)

    @property
    def metrics(self) -> SpecMetrics:
        """Counters since the engine was built."""
        return self.engine.metrics

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        """Serve the requests in one batch and yield updates; closing the iterator aborts them all."""
        index: dict[str, int] = {}
        try:
            for number, request in enumerate(requests):
                if request.top_logprobs and not self._baseline:
                    raise RequestError.build(
                        "the embedded engine has no log-probabilities",
                        who="specplug_transformers",
                        expected="a request without them",
                    )
                index[self.engine.add(_translate(request))] = number
            for output in self.engine.serve(index):
                number = index[output.request_id]
                yield TextUpdate(
                    index=number,
                    text=output.new_text,
                    token_ids=output.new_token_ids,
                    finish_reason=output.finish_reason,
                    top_logprobs=self._top_logprobs(requests[number], output),
                )
        finally:
            for name in index:
                self.engine.abort(name)

    def _top_logprobs(self, request: TextRequest, output: RequestOutput) -> list[dict[int, float]]:
        """Return log-probabilities of all output tokens, when they are there, from a plain forward pass."""
        if not (request.top_logprobs and output.finished):
            return []
        prompt = self.tokenize(request.prompt) if isinstance(request.prompt, str) else [*request.prompt]
        text = torch.tensor([[*prompt, *output.token_ids]], device=self._model.device)
        with torch.inference_mode():
            logits = self._model(text).logits[0, len(prompt) - 1 : -1]
        found = []
        for token, logprobs in zip(output.token_ids, logits.float().log_softmax(-1), strict=True):
            top = logprobs.topk(min(request.top_logprobs, logprobs.shape[-1]))
            best = dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
            found.append({token: float(logprobs[token]), **best})
        return found

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        return list(self._tokenizer(text).input_ids)

    def describe(self) -> str:
        """Return model, size, dtype and device in one line."""
        count = sum(parameter.numel() for parameter in self._model.parameters())
        device = self._model.device
        threads = torch.get_num_threads()
        on_cpu = f"a CPU, {threads} {'thread' if threads == 1 else 'threads'}"
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
        return f"{Path(self._name).name}, {count / 1e6:.1f} M parameters, {self._model.dtype}, on {where}"

    def close(self) -> None:
        """Release the engine."""
        self.engine.close()


def load(model: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Raises:
        EngineError: the model cannot be loaded, or the dtype or the device does not exist.
    """
    _check_device(device)
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        names = "float32, bfloat16, float16"
        raise EngineError.build("unknown dtype", who="specplug_transformers", found=repr(dtype), expected=names)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line shows its own progress
    with errors_of_libraries(model, "cannot load the model", EngineError):
        tokenizer = AutoTokenizer.from_pretrained(model)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return loaded.to(device), tokenizer


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "": False}.get(kind, True)  # torch checks the others
    if not is_there:
        raise EngineError.build(
            "no such device",
            who="specplug_transformers",
            found=repr(device),
            expected=", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]),
            remedy="Leave it out to use a GPU where there is one",
        )


def _translate(request: TextRequest) -> GenerateRequest:
    params = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        stop=tuple(request.stop),
    )
    return GenerateRequest(prompt=request.prompt, params=params, specplug=request.specplug or None)
