"""The arms of transformers, all on one model in this process, with one thread: `generate`, and the embedded engine."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.real_models.arms import BASELINE, Arm, Role

PACKAGES = ("transformers", "torch", "specplug")

LOOKUPS = (3, 5, 10)

SHORTEST = 32
"""Fewest tokens of a prefill's first forward pass; prompts are longer, and the embedded engine's trials shorter."""

SETTINGS = {"proposer": "ngram"}
"""As README.md builds the embedded engine."""


def arms(model: str, concurrency: int) -> list[Arm]:
    """Return the arms; with several requests at a time the embedded engine's alone.

    The baseline is `generate` itself, which serves one prompt at a time here, as its prompt lookup does.
    """
    ours = Arm("specplug", "specplug", {"model": model, "rows": concurrency, "engine": SETTINGS})
    off = {"model": model, "rows": concurrency, "engine": {"mode": "off"}}
    if concurrency > 1:
        return [Arm(BASELINE, "baseline", off), ours]

    def generate(name: str, role: Role, **given: Any) -> Arm:
        return Arm(name, role, {"model": model, "generate": given})

    return [
        generate(BASELINE, "baseline"),
        *(generate(f"prompt lookup, {gamma}", "built-in", prompt_lookup_num_tokens=gamma) for gamma in LOOKUPS),
        Arm("embedded engine, no speculation", "plain", off),
        ours,
        generate("specplug in generate", "specplug", specplug=SETTINGS),
    ]


class Local:
    """An arm in this process."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self._launch, self._decoder = launch, None

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Run ``function(decoder, **arguments)``; the decoder is made at the first call, and after `stop`."""
        if self._decoder is None:
            made = Embedded if "engine" in self._launch else Generate
            self._decoder = made(loaded(self._launch["model"]), self._launch)
        return function(self._decoder, **arguments)

    def stop(self) -> None:
        """Forget all that the arm has learnt."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None


@functools.cache
def loaded(folder: str) -> Any:
    """Return the model, which all arms share."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def answer(decoder: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer prompts together.  Returns the fields of `Answer`."""
    found: dict[str, Any] = decoder.answer(prompts, params)
    return found


class Embedded:
    """specplug's embedded engine."""

    def __init__(self, model: Any, launch: dict[str, Any]) -> None:
        from specplug_transformers import Engine

        self._engine = Engine(model, settings=launch["engine"], max_num_seqs=launch["rows"])

    def answer(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> dict[str, Any]:
        """See `answer`."""
        from specplug_transformers import GenerateRequest, SamplingParams

        engine = self._engine
        timeline = []
        steps = tokens = prefill_steps = 0
        before = engine.metrics.snapshot().total
        began, cpu = time.perf_counter(), time.process_time()
        ids: dict[str, list[int]] = {
            engine.add(GenerateRequest(prompt=prompt, params=SamplingParams(**given))): []
            for prompt, given in zip(prompts, params, strict=True)
        }
        while engine.has_work:
            for output in engine.step():
                if output.new_token_ids and not ids[output.request_id]:
                    prefill_steps = len(timeline) + 1
                steps += bool(output.new_token_ids)
                tokens += len(output.new_token_ids)
                ids[output.request_id] += output.new_token_ids
            timeline.append([time.perf_counter() - began, time.process_time() - cpu, tokens])
        grown = engine.metrics.snapshot().total - before
        return {
            "token_ids": list(ids.values()),
            "seconds": timeline[-1][0],
            "cpu": timeline[-1][1],
            "steps": steps,
            "drafted": grown.proposed,
            "accepted": grown.accepted,
            "timeline": timeline,
            "prefill_steps": prefill_steps,
        }

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


class Generate:
    """transformers' `generate`, one prompt at a time; forward passes are its steps."""

    def __init__(self, model: Any, launch: dict[str, Any]) -> None:
        from specplug_transformers import speculative_generate

        self._model, self._arguments = model, dict(launch["generate"])
        self._ours = "specplug" in self._arguments
        if self._ours:
            self._arguments["custom_generate"] = speculative_generate

    def answer(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> dict[str, Any]:
        """See `answer`."""
        import torch

        (prompt,), (given,) = prompts, params
        sampled = given["temperature"] > 0
        sampling = {"temperature": given["temperature"], "top_k": 0} if sampled else {}
        streamer = _Streamer()
        stream = {"specplug_streamer" if self._ours else "streamer": streamer}
        forwards: list[int] = []
        hook = self._model.register_forward_pre_hook(
            lambda _, args, kwargs: forwards.append((args or (kwargs["input_ids"],))[0].shape[1]), with_kwargs=True
        )
        if "seed" in given:
            torch.manual_seed(given["seed"])
        ids = torch.tensor([prompt])
        began, cpu = streamer.start()
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=given["max_tokens"],
            do_sample=sampled,
            **sampling,
            **stream,
            **self._arguments,
        )
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        hook.remove()
        new = output[0, len(prompt) :].tolist()
        decoding = _after_prefill(forwards, len(prompt) - self._ours)
        steps = len(decoding) + (not self._ours)  # as the prefill emits a token but with specplug
        return {
            "token_ids": [new],
            "seconds": seconds,
            "cpu": used,
            "steps": steps,
            "drafted": sum(decoding) - len(decoding),
            "accepted": len(new) - steps,
            "timeline": streamer.timeline,
            "prefill_steps": 1,
        }

    def close(self) -> None:
        """Do nothing: a call of `generate` leaves nothing behind."""


def _after_prefill(lengths: list[int], prompt: int) -> list[int]:
    """Return the lengths of the forward passes after the prompt's own; the embedded engine tries short ones before."""
    begin = next(place for place, length in enumerate(lengths) if length >= min(prompt, SHORTEST))
    fed = itertools.accumulate(lengths[begin:])
    return lengths[begin + 1 + next(place for place, total in enumerate(fed) if total >= prompt) :]


class _Streamer:
    """Notes when tokens came."""

    def __init__(self) -> None:
        self.timeline: list[list[float]] = []
        self._tokens = 0
        self._has_prompt = False

    def start(self) -> tuple[float, float]:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self._began, self._cpu

    def put(self, value: Any) -> None:
        if self._has_prompt:
            self._tokens += value.numel()
            self.timeline.append([time.perf_counter() - self._began, time.process_time() - self._cpu, self._tokens])
        self._has_prompt = True

    def end(self) -> None:
        pass
