"""specplug for `model.generate`, through transformers' own `custom_generate` argument.

    from specplug_transformers import speculative_generate

    model.generate(**inputs, custom_generate=speculative_generate, specplug={"num_speculative_tokens": 15})

Greedy search and sampling behave as in `generate`, with all its logits processors and stopping criteria.  Transformers
passes neither `streamer` nor `tokenizer` to a custom function: pass a streamer as `specplug_streamer`, and
stop strings as a `StopStringCriteria` among the stopping criteria.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specplug.errors import EngineError
from specplug.settings import Settings
from specplug.settings.sources import load_settings
from specplug_transformers.engine import Engine
from specplug_transformers.intake import GenerateRequest
from specplug_transformers.params import SamplingParams

_LOWEST_TEMPERATURE = 1e-30
_CACHE = ("cache", "past_key_values")  # its name from transformers 5.24 on, and before
_UNUSED = {"attention_mask", "position_ids", "use_cache", "cache_position", "logits_to_keep", *_CACHE}
_ENCODED = "mm_encoder_outputs"  # by kind, what `generate` makes of images and videos; empty for text


def speculative_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    specplug: Settings | Mapping[str, Any] | None = None,
    specplug_requests: Sequence[Mapping[str, Any]] | None = None,
    specplug_streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate for `input_ids` [B, L] int64, left-padded if lengths differ, as `GenerationMixin._sample` would.

    Puts the model into evaluation mode.  Calls for the same model under the same settings share an engine, which keeps
    what it has learnt, so later calls start without tests of the model and draft from earlier answers.

    Args:
        specplug: a mapping that overrides SPECPLUG_CONFIG and the defaults, or a `Settings` object in their place.
        specplug_requests: per-request fields, one mapping per row.
        specplug_streamer: receives a single prompt and then its new tokens, as `streamer` does.
        model_kwargs: arguments that `generate` prepared for the forward pass; only `attention_mask` is used, and any
            argument that would change the model's output is refused.

    Returns:
        [B, L + new] int64, right-padded with the pad token; or an output object with `sequences` if the generation
        config sets `return_dict_in_generate`.

    Raises:
        EngineError: the arguments of `generate` are not supported here.
    """
    prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
    with _engine_of(model, specplug, len(prompts)) as engine:
        _refuse(generation_config, logits_processor, model_kwargs, prompts, specplug_streamer)
        _check_lengths(generation_config.max_length - input_ids.shape[1], prompts, engine.max_length)
        requests = []
        for row, prompt in enumerate(prompts):
            padding = input_ids[row, : input_ids.shape[1] - len(prompt)]
            requests.append(
                GenerateRequest(
                    prompt=prompt.tolist(),
                    params=_params(generation_config, input_ids.shape[1]),
                    specplug=None if specplug_requests is None else specplug_requests[row],
                    processors=_for_row(row, padding, logits_processor) if len(logits_processor) else None,
                    stop_when=_stop_when(padding, stopping_criteria),
                )
            )
        if specplug_streamer is not None:
            specplug_streamer.put(input_ids.cpu())  # which a streamer with `skip_prompt` waits for
        answers = _run(engine, requests, specplug_streamer)
    sequences = _padded(input_ids, answers, generation_config)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return sequences


_idle: weakref.WeakKeyDictionary[Any, tuple[Engine, weakref.finalize[[], Any]]] = weakref.WeakKeyDictionary()
"""By model, the engine that served it last, which does not refer to it any more, and what closes the engine."""


@contextmanager
def _engine_of(model: Any, given: Settings | Mapping[str, Any] | None, rows: int) -> Iterator[Engine]:
    """Lend the engine that served the model before, if it can do so again, or a new one."""
    settings = given if isinstance(given, Settings) else load_settings(given, flags_origin="generate").settings
    engine, close = _idle.pop(model, (None, None))  # nobody else's while it serves
    if engine is None or engine.settings != settings or rows > engine.max_num_seqs or not engine.attach(model):
        if close is not None:
            close()
        engine = Engine(model, settings=settings, max_num_seqs=rows)
        close = weakref.finalize(model, engine.close)
    assert close is not None
    try:
        yield engine
    except BaseException:
        close()
        raise
    finally:
        engine.detach()
    if model in _idle:  # another call has begun and ended meanwhile
        _idle[model][1]()
    _idle[model] = engine, close


def _params(config: Any, padded_length: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=config.max_length - padded_length,
        temperature=float(bool(config.do_sample)),  # the processors include the warpers
        seed=int(torch.randint(1 << 62, ())),  # follows torch.manual_seed, as `generate` does
        ignore_eos=True,  # the stopping criteria include the end of sequence
    )


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


def _refuse(
    config: Any, processors: LogitsProcessorList, model_kwargs: Mapping[str, Any], prompts: list[Tensor], streamer: Any
) -> None:
    caches = [cache for name in _CACHE if (cache := model_kwargs.get(name)) is not None]
    constrained = any(isinstance(processor, PrefixConstrainedLogitsProcessor) for processor in processors)
    requested = {
        "num_beams": config.num_beams not in (None, 1),
        "output_scores": config.output_scores,
        "output_logits": config.output_logits,
        "output_attentions": config.output_attentions,
        "output_hidden_states": config.output_hidden_states,
        "guidance_scale": config.guidance_scale not in (None, 1.0),
        "watermarking_config": config.watermarking_config is not None,
        "prefix_allowed_tokens_fn for several prompts": constrained and len(prompts) > 1,
        "a streamer for several prompts": streamer is not None and len(prompts) > 1,
        "a cache that holds a context": any(cache.get_seq_length() for cache in caches),
    }
    inputs = {name for name, value in model_kwargs.items() if value is not None and value is not False}
    found = [name for name, is_requested in requested.items() if is_requested]
    found += [f"{kind} inputs" for kind in model_kwargs.get(_ENCODED) or ()] + sorted(inputs - _UNUSED - {_ENCODED})
    if found:
        expected, remedy = "greedy search or sampling of token ids", "Call model.generate without custom_generate"
        raise _error("these arguments of generate are not supported", ", ".join(found), expected, remedy)
    if config.do_sample and config.temperature is not None and config.temperature < _LOWEST_TEMPERATURE:
        # It takes logits to infinity in the warper, as `generate` would find too.
        expected, remedy = f"at least {_LOWEST_TEMPERATURE}", "Set do_sample=False for greedy search"
        raise _error("the temperature is too low to divide logits by", config.temperature, expected, remedy)


def _check_lengths(max_tokens: int, prompts: list[Tensor], max_length: int) -> None:
    longest = max(map(len, prompts))
    if longest + max_tokens > max_length:
        found = f"a prompt of {longest} tokens and up to {max_tokens} new ones"
        expected, remedy = f"at most {max_length} tokens in all", "Lower max_new_tokens or max_length"
        raise _error("the context would become too long", found, expected, remedy)


def _error(what: str, found: object, expected: str, remedy: str) -> Exception:
    return EngineError.build(what, who="speculative_generate", found=found, expected=expected, remedy=remedy)


def _unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """Return each row without its padding."""
    if attention_mask is None:
        return list(input_ids)
    kept = attention_mask.bool()
    if kept.shape != input_ids.shape or not bool((kept.cummax(1).values == kept).all()):
        found = f"a mask of shape {tuple(attention_mask.shape)}"
        expected, remedy = "zeros in front of ones, one for each input id", "Set the tokenizer's padding_side='left'"
        raise _error("the attention mask hides more than left padding", found, expected, remedy)
    return [ids[mask] for ids, mask in zip(input_ids, kept, strict=True)]


def _for_row(row: int, padding: Tensor, processors: LogitsProcessorList) -> Callable[..., Any]:
    """Return the processors for one row, which they see with its left padding, as in `generate`: some count positions.

    From transformers 5.24 on, repetition penalties hold each row's length of padding.
    """
    mine: Any = LogitsProcessorList(processors)
    for index, processor in enumerate(processors):
        if isinstance(lengths := getattr(processor, "prompt_ignore_length", None), Tensor):
            mine[index] = copy.copy(processor)
            mine[index].prompt_ignore_length = lengths[row : row + 1]

    def process(input_ids: Tensor, scores: Tensor) -> Any:
        return mine(torch.cat([padding[None], input_ids], 1), scores)

    return process


def _stop_when(padding: Tensor, criteria: StoppingCriteriaList) -> Callable[[Sequence[int]], bool]:
    def stop(token_ids: Sequence[int]) -> bool:
        ids = torch.cat([padding, torch.tensor(token_ids, dtype=padding.dtype, device=padding.device)])
        return bool(criteria(ids[None], None).item())

    return stop


def _padded(input_ids: Tensor, answers: list[tuple[int, ...]], config: Any) -> Tensor:
    """Join prompts and answers as `generate` does, with rows that ended earlier padded by the pad token."""
    pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    longest = max(map(len, answers))
    rows = [[*answer, *[pad] * (longest - len(answer))] for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], 1)
