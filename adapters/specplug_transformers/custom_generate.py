"""specplug behind `model.generate`, through transformers' own `custom_generate` seam.

    from specplug_transformers import speculative_generate

    model.generate(**inputs, custom_generate=speculative_generate, specplug={"num_speculative_tokens": 8})

Greedy search and sampling behave as in `generate`, with all its logits processors and stopping criteria.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specplug.errors import EngineError
from specplug_transformers.engine import Engine
from specplug_transformers.intake import GenerateRequest
from specplug_transformers.params import SamplingParams


def speculative_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    specplug: Mapping[str, Any] | None = None,
    specplug_requests: Sequence[Mapping[str, Any]] | None = None,
    **model_kwargs: Any,
) -> Any:
    """Generate for `input_ids` [B, L] int64 (left-padded where rows differ), as `GenerationMixin._sample` would.

    Args:
        specplug: settings that override SPECPLUG_CONFIG and the defaults.
        specplug_requests: per-request fields, one mapping per row.

    Returns:
        [B, L + new] int64, right-padded with the pad token; or an output object with `sequences` when the generation
        config asks for one.

    Raises:
        EngineError: the generation config asks for something that this seam does not serve.
    """
    _refuse(generation_config, synced_gpus, streamer, input_ids)
    prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
    fields = specplug_requests or [{}] * len(prompts)
    engine = Engine(model, settings=specplug, max_num_seqs=len(prompts))
    requests = []
    for row, prompt in enumerate(prompts):
        padding = input_ids[row, : input_ids.shape[1] - len(prompt)]
        requests.append(
            GenerateRequest(
                prompt=prompt.tolist(),
                params=SamplingParams(
                    max_tokens=generation_config.max_length - input_ids.shape[1],
                    temperature=float(bool(generation_config.do_sample)),  # the warpers are among the processors
                    seed=int(torch.randint(1 << 62, ())),  # follows torch.manual_seed, as `generate` does
                    ignore_eos=True,  # the end of sequence is among the stopping criteria
                ),
                specplug=fields[row],
                processors=_with_padding(padding, logits_processor) if len(logits_processor) else None,
                stop_when=_stop_when(padding, stopping_criteria),
            )
        )
    try:
        answers = _run(engine, requests, streamer)
    finally:
        engine.close()
    sequences = _padded(input_ids, answers, generation_config)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences


def _run(engine: Engine, requests: list[GenerateRequest], streamer: Any) -> list[tuple[int, ...]]:
    order = [engine.add(request) for request in requests]
    answers: dict[str, tuple[int, ...]] = {}
    for output in engine.run():
        answers[output.request_id] = output.token_ids
        if streamer is not None:
            for token in output.new_token_ids:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return [answers[name] for name in order]


def _refuse(config: Any, synced_gpus: bool, streamer: Any, input_ids: Tensor) -> None:
    refused = {
        "num_beams": config.num_beams not in (None, 1),
        "output_scores": bool(config.output_scores),
        "output_logits": bool(config.output_logits),
        "output_attentions": bool(config.output_attentions),
        "output_hidden_states": bool(config.output_hidden_states),
        "guidance_scale": config.guidance_scale not in (None, 1.0),
        "synced_gpus": synced_gpus,
        "a streamer for several prompts": streamer is not None and input_ids.shape[0] > 1,
    }
    found = [name for name, asked in refused.items() if asked]
    if found:
        raise EngineError.build(
            "generate was asked for something that speculation here does not serve",
            who="speculative_generate",
            found=", ".join(found),
            expected="greedy search or sampling of token ids",
            remedy="Call model.generate without custom_generate",
        )


def _unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    if attention_mask is None:
        return list(input_ids)
    return [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]


def _with_padding(padding: Tensor, processors: Callable[..., Any]) -> Callable[..., Any]:
    """Let processors see the row as `generate` shows it to them, left padding included: some count positions."""

    def process(input_ids: Tensor, scores: Tensor) -> Any:
        return processors(torch.cat([padding[None], input_ids], 1), scores)

    return process


def _stop_when(padding: Tensor, criteria: StoppingCriteriaList) -> Callable[[Sequence[int]], bool]:
    def stop(token_ids: Sequence[int]) -> bool:
        ids = torch.cat([padding, torch.tensor(token_ids, dtype=padding.dtype, device=padding.device)])
        return bool(criteria(ids[None], None).item())

    return stop


def _padded(input_ids: Tensor, answers: list[tuple[int, ...]], config: Any) -> Tensor:
    eos = config.eos_token_id
    pad = config.pad_token_id if config.pad_token_id is not None else (eos[0] if isinstance(eos, list) else eos)
    longest = max(map(len, answers))
    rows = [[*answer, *[pad or 0] * (longest - len(answer))] for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], 1)
